"""Sentences, character by character."""

from __future__ import annotations

import torch

from isornn.tasks.data_files import DataError
from isornn.tasks.task import Item, Part, Task, at_least
from isornn.tasks.text import Text, Vocabulary, lines


class Sentences(Task):
    """One sentence, character by character: x_t is character t and y_t the next.

    A line of the text is a sentence; longer ones than ``longest`` are left out, and so are those of fewer than two
    characters. Penn Treebank has 49 different characters (its ``<unk>`` is five of them); of its training sentences
    25 % have at most 75 characters and 99.4 % at most 300. Losses are in nats; bits per character are the loss / ln 2.

    Left unsaid in the paper, and chosen here: the spaces around a line are dropped (counted with them 24 % have at
    most 75 characters; the paper says 23 % of the data); there is no sign for the sentence's end, so that the first
    character is not predicted and nothing is after the last.

    Args:
        text: with a sentence a line.
        longest: most characters of a sentence, at least 2: 75 and 300 in the paper.
        part: "train", "valid" or "test".
        seed: without effect on items; of the loader's order.

    Item: x and y (characters - 1,) int64, of all characters in the text's three parts; lengths vary.

    Raises:
        ValueError: an argument that is not allowed, or no sentence in the part.

    Source: Vorontsov et al. 2017, section 4.2, tables 3 and 4.

    >>> task = Sentences(Text("two lines", "here", "a cat\\nno\\na longer sentence", "b", "c"), longest=5)
    >>> task.size, task.inputs
    (2, 12)
    >>> "".join(task.vocabulary.symbols[i] for i in task[0][1])
    ' cat'
    """

    symbolic = per_step = predicts_next = lengths_vary = True

    def __init__(self, text: Text, longest: int, part: Part = "train", *, seed: int = 0) -> None:
        at_least("longest", longest, 2, "a sentence has at least 2 characters")
        every = [line for one in (text.train, text.valid, text.test) for line in lines(one)]
        self.vocabulary = Vocabulary([character for line in every for character in line])
        kept = [line for line in lines(text.part(part)) if 2 <= len(line) <= longest]
        self.sentences = [self.vocabulary.numbers(line) for line in kept]
        self.inputs = self.outputs = len(self.vocabulary)
        self.name = f"sentences(<= {longest})"
        self.source = text.name
        if not self.sentences:
            raise DataError(f"{text.name}: no sentence of 2 to {longest} characters in its part {part}")
        super().__init__(len(self.sentences), seed)

    def draw(self, index: int, generator: torch.Generator) -> Item:
        sentence = self.sentences[index]
        return sentence[:-1], sentence[1:]
