"""The tutorials as text: their cells are run when the site is built, which fails where an assertion of theirs does."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("[0-9]*.md"))
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.S | re.M)
HIDDEN = re.compile(r"^```\{code-cell\} ipython3\n:tags: \[remove-cell\]\n.*?^```$", re.S | re.M)


def test_there_are_twelve_in_order_and_all_are_listed() -> None:
    assert [int(file.name[:2]) for file in TUTORIALS] == list(range(1, 13))
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\(((?:\d\d)-[^)]+\.md)\)", index)
    assert listed == [file.name for file in TUTORIALS]
    assert re.findall(r"^(\d\d-\S+)$", index, re.M) == [file.stem for file in TUTORIALS]


@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_begins_with_the_answer_and_ends_with_a_picture(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("---\njupytext:\n") and "\nkernelspec:\n" in text
    shown = HIDDEN.sub("", text).split("---\n", 2)[2]
    assert 60 <= len(shown.splitlines()) <= 150
    answer = text.split("\n# ", 1)[1].split("\n## ", 1)[0]
    assert "**You will be able to**" in answer and "**In a sentence**" in answer
    cells = CELL.findall(text)
    assert text.rstrip().endswith("```") and re.search(r"subplots|draw_", cells[-1])


@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_claims_are_held_by_assertions_that_readers_do_not_see(file: Path) -> None:
    cells = CELL.findall(file.read_text(encoding="utf-8"))
    for cell in cells:
        lines = cell.splitlines()
        hidden = lines[0] == ":tags: [remove-cell]"
        compile("\n".join(lines[hidden:]), file.name, "exec")
        assert hidden or not any(line.lstrip().startswith("assert ") for line in lines)
    assert any(cell.startswith(":tags: [remove-cell]") and "\nassert " in cell for cell in cells)


@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_links_lead_somewhere(file: Path) -> None:
    prose = CELL.sub("", file.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", prose)
    assert all((FOLDER / target).is_file() for target in targets), targets
