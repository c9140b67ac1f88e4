"""Penn Treebank's first lines with their most frequent words: little enough for many passes on two cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from isornn.experiments.target import Bench
from isornn.files import replacing
from isornn.tasks import Text, load_ptb
from isornn.tasks.running_text import UNKNOWN
from isornn.tasks.text import lines

CHOICE = (
    "At scale small the text is Penn Treebank's first lines with their most frequent words, the others as <unk>: "
    "perplexities are comparable with each other only, and as the held-out parts have nearly twice as many <unk>, "
    "which is easily guessed, theirs may lie below training's."
)


def with_few_words(bench: Bench) -> tuple[Bench, Text]:
    """The bench with the settings' ``lines``, ``held_out_lines`` and ``words`` as its data, and that text; all of the
    text without ``lines``. The files are written next to the measurement's runs.

    Raises:
        DataError: as `isornn.tasks.load_ptb`.
    """
    settings, text = bench.settings, load_ptb(bench.data)
    if "lines" not in settings:
        return bench, text
    few = few_words(text, settings["lines"], settings["held_out_lines"], settings["words"])
    folder = bench.folder / "text"
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", few.train), ("valid", few.valid), ("test", few.test)):
        with replacing(folder / f"ptb.{name}.txt") as new:
            new.write_text(part, encoding="utf-8")
    return replace(bench, data=folder), few


def few_words(text: Text, most_lines: int, most_held_out: int, most_words: int) -> Text:
    """The first lines of each part; of the words only the most frequent ones of these training lines.

    >>> few = few_words(Text("t", "here", "b a\\na b b c\\nd", "a d", "c\\nb"), 2, 1, 2)
    >>> few.train, few.valid, few.test
    ('b a\\na b b <unk>\\n', 'a <unk>\\n', '<unk>\\n')
    """
    train = lines(text.train)[:most_lines]
    counts = Counter(word for line in train for word in line.split())
    known = {word for word, _ in counts.most_common(most_words)}

    def kept(part: Iterable[str]) -> str:
        return "".join(" ".join(w if w in known else UNKNOWN for w in line.split()) + "\n" for line in part)

    held_out = (kept(lines(part)[:most_held_out]) for part in (text.valid, text.test))
    return Text(f"{text.name}, some lines", text.source, kept(train), *held_out)
