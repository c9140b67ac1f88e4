"""A continuous text, word by word or character by character, in columns whose states are carried over."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.tasks.data_files import DataError
from isornn.tasks.task import Item, Part, Task, at_least
from isornn.tasks.text import Text, Vocabulary, lines

END, UNKNOWN = "<eos>", "<unk>"


class RunningText(Task):
    """A text of n + 1 symbols cut into B columns of L = floor(n / B) targets; an item is the next U steps of a column.

    Column b has the symbols bL ... (b + 1)L, and step t of it asks for the next symbol. Item i is steps
    (i div B) U ... of column i mod B; so the batch k of B items (`isornn.tasks.loader` with batch size B) goes on where
    batch k - 1 ended, and the state goes on with it. ``new_pass(k)`` says where it begins anew. A pass has ceil(L / U)
    batches, of which the last has what is left over of the columns; at most B - 1 symbols are never asked for.

    Args:
        symbols: numbers of the symbols, (n + 1,).
        vocabulary: what they stand for.
        columns: B; 1 asks for every symbol but the first, which is what a held-out part wants.
        unroll: U, the most steps of an item.
        name, source: as `Task`.

    Item: x (U,) and y (U,), int64.

    Raises:
        ValueError: an argument that is not allowed, or a text of fewer symbols than columns.

    >>> from isornn.tasks import Words
    >>> task = Words(Text("a rose", "here", "a rose is\\na rose is\\na rose", "a rose", "is a"), columns=2, unroll=3)
    >>> isinstance(task, RunningText), task[0][0].tolist()
    (True, [...])
    """

    symbolic = per_step = predicts_next = True
    columns: int

    def __init__(
        self, symbols: Tensor, vocabulary: Vocabulary, columns: int, unroll: int, name: str, source: str
    ) -> None:
        at_least("columns", columns, 1, "it must be at least 1")
        at_least("unroll", unroll, 1, "it must be at least 1 step")
        self.name, self.source, self.vocabulary = name, source, vocabulary
        self.inputs = self.outputs = len(vocabulary)
        self.columns, self.unroll = columns, unroll
        self.symbols, self.steps = symbols, (len(symbols) - 1) // columns
        if self.steps < 1:
            raise DataError(f"{source}: {len(symbols)} symbols are too few for {columns} columns")
        self.batches = -(-self.steps // unroll)
        super().__init__(self.batches * columns, 0)

    def new_pass(self, batch: int) -> bool:
        """Whether batch number ``batch`` of a loader begins the text anew, with a new state."""
        return batch % self.batches == 0

    def draw(self, index: int, generator: torch.Generator) -> Item:
        chunk, column = divmod(index, self.columns)
        start = column * self.steps + chunk * self.unroll
        end = column * self.steps + min((chunk + 1) * self.unroll, self.steps)
        return self.symbols[start:end], self.symbols[start + 1 : end + 1]


class Words(RunningText):
    """Word by word, each line ended by ``<eos>``; see `RunningText`. The loss is in nats, its exponential perplexity.

    Penn Treebank has 929,589 / 73,760 / 82,430 words and 10,000 different ones. A word that the training part does
    not have is ``<unk>``, which then must be a word of the training part. Zaremba et al.'s own batches drop what is
    left over of the columns after whole chunks; here a shorter last batch has it, so that a held-out part with one
    column counts every word but the first.

    Left unsaid in the papers that use it: columns and unrolling; Zaremba et al.'s are 20 and 20 ("small") or 35
    ("medium").

    Args:
        text: with a sentence a line.
        part: "train", "valid" or "test".
        columns: B, the batch size.
        unroll: U.

    Raises:
        ValueError: an argument that is not allowed, or a word that is not known.

    Sources: Zaremba et al. 2015; Balduzzi & Ghifary 2016, table 4.

    >>> text = Text("a rose", "here", "a rose is\\na rose is\\na rose", "a rose", "is a")
    >>> task = Words(text, columns=2, unroll=3)
    >>> [[task.vocabulary.symbols[word] for word in task[item][0]] for item in range(4)]
    [['a', 'rose', 'is'], ['rose', 'is', '<eos>'], ['<eos>', 'a'], ['a', 'rose']]
    """

    def __init__(self, text: Text, part: Part = "train", *, columns: int = 20, unroll: int = 20) -> None:
        vocabulary = Vocabulary(_words(text.train))
        words = [word if word in vocabulary else UNKNOWN for word in _words(text.part(part))]
        if UNKNOWN in words and UNKNOWN not in vocabulary:
            raise DataError(f"{text.name}: its part {part} has words that training has not, and there is no {UNKNOWN}")
        super().__init__(vocabulary.numbers(words), vocabulary, columns, unroll, "words", text.name)


class Characters(RunningText):
    """A book character by character; see `RunningText`. The loss is in nats per character.

    Left unsaid in the paper, and chosen here: the alphabet is that of all three parts; columns and unrolling (100 and
    100 in Karpathy et al. 2015, whose setting the paper names).

    Args:
        text: for books 80/10/10, `isornn.tasks.load_book`.
        part: "train", "valid" or "test".
        columns: B, the batch size.
        unroll: U.

    Raises:
        ValueError: an argument that is not allowed.

    Source: Balduzzi & Ghifary 2016, tables 1 to 3.

    >>> task = Characters(Text("letters", "here", "abcabca", "b", "c"), columns=2, unroll=2)
    >>> [task[item][0].tolist() for item in range(4)]
    [[0, 1], [0, 1], [2], [2]]
    """

    def __init__(self, text: Text, part: Part = "train", *, columns: int = 100, unroll: int = 100) -> None:
        vocabulary = Vocabulary([symbol for one in (text.train, text.valid, text.test) for symbol in one])
        numbers = vocabulary.numbers(text.part(part))
        super().__init__(numbers, vocabulary, columns, unroll, "characters", text.name)


def _words(text: str) -> list[str]:
    return [word for line in lines(text) for word in (*line.split(), END)]
