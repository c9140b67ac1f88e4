"""What a user's type checker sees: names that are loaded on first use have types too."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import isornn
from isornn import present


@pytest.mark.parametrize("package", [isornn, present], ids=lambda package: package.__name__)
def test_a_type_checker_imports_every_lazy_name_from_its_home(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    homes = {name: f"{package.__name__}.{home}" for name, home in package._HOMES.items()}
    modules = dict.fromkeys(getattr(package, "_MODULES", ()), package.__name__)
    assert seen == homes | modules and sorted(seen) == sorted(package.__all__)
