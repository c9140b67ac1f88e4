"""How Sphinx builds the site: `make docs`. Nothing is loaded from the network, neither here nor in the pages."""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

DOCS = Path(__file__).parent
# For the tutorials, of which several run at a time: torch's threads would wait for each other's processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(DOCS / "_ext"))

project = "isornn"
author = "The isornn developers"
copyright = author
version = release = version_of("isornn")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    # docs/_ext
    "commands",
    "inner_links",
    "links",
    "navigation",
    "notebooks",
    "papers",
    "reexports",
    "terms",
]
templates_path = ["_templates"]
smartquotes = False
exclude_patterns = ["_build", "_ext", "_templates", "inventories"]
highlight_language = "none"
suppress_warnings = ["myst.xref_missing_inventory"]

# Pages are Markdown; a link to a heading is file.md#heading, as on a git forge.
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

# Tutorials run when the site is built, and again only after they change.
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # by default from the network

# The reference: docs/reference lists the names, a page of each is generated from its docstring.
autosummary_generate = True
autodoc_mock_imports = ["lightning", "transformers", "stable_baselines3", "sb3_contrib"]  # the trainers of integrations
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "py:obj"  # docstrings write `name` for names of this library, and ``code`` for all else
add_module_names = False
toc_object_entries = False

intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", "inventories/python.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable/", "inventories/torch.inv"),
    "numpy": ("https://numpy.org/doc/stable/", "inventories/numpy.inv"),
}

html_theme = "furo"
html_title = "isornn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
linkcheck_timeout = 20
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
