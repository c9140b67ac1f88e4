"""The pages in docs/: every public name has one, and every page can be found from the first. Without Sphinx."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import isornn

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
CLICKS = 3

# Exported for other parts of the library, and read in the source.
NOT_FOR_USERS = {"isornn.cli", "isornn.cells.spec", "isornn.cells.type_rules", "isornn.tasks.image_set"}


@cache
def listed() -> dict[str, Path]:
    """Names of the reference's lists, each of which Sphinx gives a page, and of the constants, with the page."""
    found: dict[str, Path] = {}
    for page in sorted((DOCS / "reference").glob("*.md")):
        text = page.read_text()
        found |= dict.fromkeys(re.findall(r"\{py:data\} (\S+)", text), page)
        module = re.search(r"\.\. (?:automodule|currentmodule):: (\S+)", text)
        if module is None:
            continue
        found[module[1]] = page
        for block in re.findall(r"\.\. autosummary::\n(.*?)```", text, re.DOTALL):
            found |= {f"{module[1]}.{name}": page for name in re.findall(r"^   (\w[\w.]*)$", block, re.MULTILINE)}
    return found


def imported(name: str) -> Any:
    """What a dotted name stands for."""
    head, _, tail = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return getattr(imported(head), tail)


@cache
def documented() -> set[int]:
    """What the lists name, by identity: one thing may be exported under several names."""
    return {id(imported(name)) for name in listed() if not name.startswith("isornn.integrations.")}


def packages() -> Iterator[ModuleType]:
    """All modules that say what they export."""
    yield isornn
    for found in pkgutil.walk_packages(isornn.__path__, "isornn."):
        if found.name.split(".")[-1] in ("__main__", "scan_triton", "arithmetic_triton") or found.name in NOT_FOR_USERS:
            continue
        if found.name.startswith(("isornn.integrations.", "isornn.explorer.")):
            continue
        module = importlib.import_module(found.name)
        if "__all__" in vars(module):
            yield module


def names_in(page: Path) -> set[str]:
    """Dotted names of this library that a page writes as code, and those that its examples import."""
    text = page.read_text()
    found = set(re.findall(r"`(isornn(?:\.\w+)+)(?:\([^`]*\))?`", text))
    for module, names in re.findall(r"from (isornn[\w.]*) import ([\w, ]+)", text):
        found |= {f"{module}.{name.strip()}" for name in names.split(",")}
    return found


def links(page: Path) -> Iterator[Path]:
    """Pages that a page links to or has in its table of contents."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", text):
        yield (page.parent / target).resolve()
    for target in re.findall(r"^:link: (\S+)$", text, re.MULTILINE):
        yield (page.parent / f"{target}.md").resolve()
    for body in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
        for line in body.splitlines():
            if line and not line.startswith(":"):
                yield from ((found).resolve() for found in page.parent.glob(f"{line}.md"))


def test_every_exported_name_has_a_page() -> None:
    pages, names = documented(), listed()
    exported = {f"{module.__name__}.{name}": getattr(module, name) for module in packages() for name in module.__all__}
    assert not [name for name, thing in exported.items() if name not in names and id(thing) not in pages]


def test_every_name_of_the_reference_exists_and_has_a_docstring() -> None:
    for name, page in listed().items():
        if not name.startswith("isornn.integrations."):
            assert imported(name).__doc__ or page.stem == "constants", name


def test_docstrings_have_bars_in_literals_only() -> None:
    """Elsewhere Sphinx takes ``|x|`` for the name of a substitution, which ends `make docs` with an error."""
    for name in listed():
        if not name.startswith("isornn.integrations."):
            text = re.sub(r"``[^`]*``|`[^`]*`|(?s:>>> .*?\n\n)", "", f"{imported(name).__doc__}\n\n")
            assert not re.search(r"(?<![\w|])\|\w[^|\n]*\|(?![\w|])", text), name


def test_every_exported_class_and_function_has_an_example() -> None:
    things = {f"{module.__name__}.{name}": getattr(module, name) for module in packages() for name in module.__all__}
    for name, thing in things.items():
        # A protocol is for who writes another one of its kind, not for who calls it.
        if inspect.isfunction(thing) or (inspect.isclass(thing) and not getattr(thing, "_is_protocol", False)):
            assert ">>> " in (thing.__doc__ or ""), name


def test_no_name_of_the_reference_has_two_pages() -> None:
    names = [name for name in listed() if not name.startswith("isornn.integrations.")]
    seen: dict[int, str] = {}
    for name in names:
        thing = imported(name)
        if isinstance(thing, (str, int, tuple)):  # constants, of which equal ones may be one object
            continue
        assert seen.setdefault(id(thing), name) == name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_names_that_pages_write_have_a_page(page: Path) -> None:
    pages, names = documented(), set(listed())
    for name in names_in(page):
        if name.startswith(("isornn.integrations.", "isornn.cli.")) or name in names:
            continue
        thing = imported(name)
        method = id(imported(name.rpartition(".")[0])) in pages and not isinstance(thing, ModuleType)
        assert isinstance(thing, ModuleType) or id(thing) in pages or method, f"{name} has no page in the reference"


def test_every_page_is_three_clicks_from_the_first() -> None:
    reached = {(DOCS / "index.md").resolve()}
    for _ in range(CLICKS):
        reached |= {target for page in reached if page.exists() for target in links(page)}
    assert not set(PAGES) - reached


def test_links_between_pages_lead_to_files() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_benchmark_is_on_its_page() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    for file in (ROOT / "benchmarks").glob("*.py"):
        if '__name__ == "__main__"' in file.read_text():
            assert f"`{file.name}`" in page, file.name
