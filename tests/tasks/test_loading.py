"""Batches: which items, in which order, the same from any start and any number of workers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pytest
import torch
from torch import Tensor

from isornn.tasks import NO_TARGET, Adding, Copy, Task, loader, one_pass
from isornn.tasks.task import Item, _split_mix


class Numbered(Task):
    """Item i is i and a random number, once for each of i % 4 + 1 steps."""

    name = "numbered"
    inputs = outputs = 2
    per_step = lengths_vary = True

    def draw(self, index: int, generator: torch.Generator) -> Item:
        noise = torch.rand((), generator=generator)
        steps = index % 4 + 1
        return torch.stack([torch.tensor(float(index)), noise]).expand(steps, 2), torch.full((steps,), index)


class NumberedValues(Numbered):
    def draw(self, index: int, generator: torch.Generator) -> Item:
        x, y = super().draw(index, generator)
        return x, y.float().unsqueeze(-1)


class Columns(Numbered):
    lengths_vary = False
    columns = 3

    def draw(self, index: int, generator: torch.Generator) -> Item:
        x, y = super().draw(index, generator)
        return x[:1], y[:1]


def same(one: Iterable[Iterable[Tensor]], two: Iterable[Iterable[Tensor]]) -> bool:
    return all(
        all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        for first, second in zip(one, two, strict=True)
    )


def first(count: int, *arguments: object, **options: object) -> list[tuple[Tensor, ...]]:
    return list(islice(loader(*arguments, **options), count))  # type: ignore[arg-type]


def test_split_mix_is_the_published_one() -> None:
    # The first three outputs of SplitMix64 from state 0.
    golden = 0x9E3779B97F4A7C15
    outputs = [_split_mix(step * golden % 2**64) for step in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("task", [Copy(7), Adding(9), Numbered(10, 0), Columns(12, 0)], ids=lambda task: task.name)
def test_batches_are_the_same_for_no_and_for_two_workers_and_from_any_start(task: Task) -> None:
    batches = first(7, task, 3, seed=4)
    assert same(batches, first(7, task, 3, seed=4))
    assert same(batches, first(7, task, 3, seed=4, workers=2))
    assert same(batches[5:], first(2, task, 3, seed=4, start=5))
    assert same(batches[5:], first(2, task, 3, seed=4, start=5, workers=2))


def test_one_pass_is_the_same_for_two_workers() -> None:
    task = Numbered(10, 0)
    assert same(one_pass(task, 4), one_pass(task, 4, workers=2))


def test_seeds_of_loader_and_task_and_positions_give_other_batches() -> None:
    streams = [first(3, Copy(3, seed=task), 5, seed=seed) for task in (0, 1) for seed in (0, 1)]
    letters = [x[:10] for stream in streams for x, _ in stream]
    letters += [x[:10] for x, _ in one_pass(Copy(3, size=5), 5)]
    assert not any(torch.equal(a, b) for i, a in enumerate(letters) for b in letters[:i])


def test_items_come_in_random_order_each_once_a_pass_with_fresh_noise() -> None:
    task = Numbered(8, 0)
    rows = torch.cat([x[0] for x, _, _ in first(6, task, 4)]).view(3, 8, 2)
    assert all(sorted(epoch.tolist()) == list(range(8)) for epoch in rows[..., 0])
    assert len({tuple(epoch.tolist()) for epoch in rows[..., 0]}) == 3
    assert len(set(rows[..., 1].flatten().tolist())) == 24
    held = torch.cat([x[0] for x, _, _ in one_pass(task, 3)])
    assert held[:, 0].tolist() == list(range(8))
    assert held[:, 1].tolist() == [float(task[i][0][0, 1]) for i in range(8)]


def test_a_batch_lies_across_two_passes_where_sizes_do_not_match() -> None:
    found = torch.cat([x[0, :, 0] for x, _, _ in first(7, Numbered(7, 0), 3)])
    assert sorted(found[:7].tolist()) == sorted(found[7:14].tolist()) == sorted(found[14:].tolist())


def test_shorter_sequences_are_padded_and_their_lengths_said() -> None:
    ((x, y, lengths),) = one_pass(Numbered(4, 0), 4)
    assert lengths.tolist() == [1, 2, 3, 4]
    behind = torch.arange(4)[:, None] >= lengths
    assert x.shape == (4, 4, 2) and bool((x[behind] == 0).all())
    assert bool((y[behind] == NO_TARGET).all()) and bool((y[~behind] == torch.arange(4).expand(4, 4)[~behind]).all())


def test_columns_keep_their_order_and_refuse_other_batch_sizes() -> None:
    assert [x[0, :, 0].tolist() for x, _ in first(4, Columns(6, 0), 3)] == [[0, 1, 2], [3, 4, 5]] * 2
    with pytest.raises(ValueError, match="batch_size: 4 is not allowed; numbered is laid out for 3"):
        loader(Columns(6, 0), 4)


def test_torchs_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    first(1, Copy(3), 2)
    list(one_pass(Copy(3, size=2), 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_endless_tasks_have_no_length_and_finite_ones_end() -> None:
    assert len(Copy(3, size=4)) == 4 and len(list(Copy(3, size=4))) == 4
    drawn = list(islice(Copy(3), 6))
    assert len(drawn) == 6 and all(torch.equal(x, Copy(3)[k][0]) for k, (x, _) in enumerate(drawn))
    with pytest.raises(TypeError, match="without end"):
        len(Copy(3))
    with pytest.raises(ValueError, match="it has no end, give it a size"):
        one_pass(Copy(3), 4)
    with pytest.raises(IndexError, match="index: 4 is not allowed"):
        Copy(3, size=4)[4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"start": -1}, "start: -1"),
        ({"workers": -1}, "workers: -1"),
    ],
)
def test_what_is_not_allowed_is_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(Copy(3), **{"batch_size": 2, **options})


def test_values_are_padded_by_what_no_loss_takes_for_one() -> None:
    (_, y, lengths), *_ = one_pass(NumberedValues(4, 0), 4)
    assert lengths.tolist() == [1, 2, 3, 4]
    assert [(~y[:, row].isnan()).sum().item() for row in range(4)] == [1, 2, 3, 4]
    assert y[:2, 1].flatten().tolist() == [1.0, 1.0]
