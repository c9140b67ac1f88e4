"""Images as sequences, against their definitions written out in loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import get_args

import pytest
import torch
from torch import Tensor

from isornn.tasks import (
    ConcatenatedDigits,
    ImageSet,
    NoisePadded,
    RepeatedPixels,
    SequentialImages,
    UnrolledColour,
    load_cifar,
    load_digits,
    loader,
    one_pass,
)
from isornn.tasks.image_set import ImageTask
from isornn.tasks.noise_padded import standardised
from isornn.tasks.task import Part

DIGITS = load_digits()


def large(count: int = 6) -> ImageSet:
    """28x28 images of a 0, a 1, a 0, ..., in the sizes of MNIST."""
    pixels = torch.rand(count, 784, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 2
    return ImageSet("made", "here", pixels, labels, pixels, labels, valid=2)


def colour(count: int = 8) -> ImageSet:
    """32x32 images in three channels, of which no two pixels are equal."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(count, 3072, generator=generator) * 0.5 + 0.25
    labels = torch.arange(count)
    return ImageSet("made", "here", pixels, labels, pixels, labels, valid=2, channels=3, mirrors=True)


def test_the_parts_of_a_set_are_all_of_it_once() -> None:
    train, valid, test = (DIGITS.part(part) for part in ("train", "valid", "test"))
    assert torch.equal(torch.cat([train[0], valid[0]]), DIGITS.train_images)
    assert torch.equal(torch.cat([train[1], valid[1]]), DIGITS.train_labels)
    assert len(valid[1]) == 1287 // 6 and torch.equal(test[0], DIGITS.test_images)
    with pytest.raises(ValueError, match="part: 'all' is not allowed"):
        DIGITS.part("all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda part: NoisePadded(DIGITS, 3, part),
        lambda part: SequentialImages(DIGITS, part),
        lambda part: RepeatedPixels(DIGITS, 7, part),
        lambda part: UnrolledColour(load_cifar(), part),
    ],
)
def test_tasks_have_the_images_of_their_part_and_say_which_data(make: Callable[[Part], ImageTask]) -> None:
    for part in get_args(Part):
        task = make(part)
        assert [int(y) for _, y in task] == DIGITS.part(part)[1].tolist()
        assert "UCI digits 8x8" in task.source and "UCI digits 8x8" in repr(task)
        assert task[0][0].shape[1] == task.inputs


def test_noise_padded_is_the_image_then_fresh_noise() -> None:
    task = NoisePadded(DIGITS, 40, "valid", seed=3)
    images, _ = standardised(DIGITS).part("valid")
    (x, y) = next(iter(one_pass(task, 64)))
    assert x.shape == (40, 64, 64) and torch.equal(x[0], images[:64]) and y.shape == (64,)
    noise = x[1:].double()
    assert abs(float(noise.mean())) < 5 / noise.numel() ** 0.5
    assert abs(float(noise.square().mean()) - 1) < 5 * (2 / noise.numel()) ** 0.5
    stream = [x for x, _ in islice(loader(task, 214), 2)]
    orders = [[int((images == first).all(1).nonzero()) for first in x[0]] for x in stream]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(214)) and orders[0] != orders[1]
    again = [x[:, order.index(5)] for x, order in zip(stream, orders, strict=True)]
    assert torch.equal(again[0][0], again[1][0]) and not torch.equal(again[0][1:], again[1][1:])


def test_sequential_images_are_rows_from_the_top_left() -> None:
    x, y = SequentialImages(large(), "test")[1]
    assert x.shape == (784, 1) and y == 1
    assert all(x[28 * row + column, 0] == large().test_images[1, 28 * row + column] for row, column in ((0, 1), (9, 3)))


def test_a_permutation_is_one_for_all_images_and_parts_and_another_for_another_seed() -> None:
    plain, train, test = (
        SequentialImages(large(), part, permutation=seed)  # type: ignore[arg-type]
        for part, seed in (("train", None), ("train", 7), ("test", 7))
    )
    order = [int((plain[0][0] == value).nonzero()[0, 0]) for value in train[0][0]]
    assert sorted(order) == list(range(784)) != order
    for task in (train, test):
        assert all(torch.equal(task[i][0], plain[i][0][order]) for i in range(4))
    assert not torch.equal(SequentialImages(large(), permutation=8)[0][0], train[0][0])


@pytest.mark.parametrize(("repeats", "steps"), [(1, 112), (3, 336), (10, 1120)])
def test_repeated_pixels_have_112_r_steps_of_7(repeats: int, steps: int) -> None:
    x, _ = RepeatedPixels(large(), repeats, "test")[2]
    assert x.shape == (steps, 7)
    by_hand = [float(pixel) for pixel in large().test_images[2] for _ in range(repeats)]
    assert x.flatten().tolist() == by_hand


def test_blank_rows_come_after_the_image() -> None:
    x, _ = RepeatedPixels(DIGITS, 20, inputs=8, blank_rows=2)[0]
    assert x.shape == (200, 8) and not x[160:].any()
    assert torch.equal(x[:160].flatten()[::20], DIGITS.train_images[0])


def test_zeros_fill_a_last_step() -> None:
    x, _ = RepeatedPixels(DIGITS, 5)[0]
    assert x.shape == (46, 7) and x.flatten()[320:].tolist() == [0, 0]
    assert torch.equal(x.flatten()[:320:5], DIGITS.train_images[0])


def test_concatenated_digits_have_70_steps_each_and_a_joint_label() -> None:
    task = ConcatenatedDigits(large(), 3, "test", size=60)
    pool, labels = large().part("test")
    assert task.inputs == 112 and task.outputs == 8
    for x, y in task:
        assert x.shape == (210, 112)
        parts = x.flatten().view(3, 784, 10)
        assert bool((parts == parts[..., :1]).all())
        which = [int((pool == part[:, 0]).all(1).nonzero()) for part in parts]
        assert int(y) == int("".join(str(int(labels[i])) for i in which), 2)
    assert {int(y) for _, y in task} == set(range(8))


def test_only_zeros_and_ones_are_concatenated() -> None:
    images, labels = DIGITS.part("train")
    zeros_and_ones = images[labels < 2]
    task = ConcatenatedDigits(DIGITS, 1, repeats=1, inputs=64, size=200)
    assert all(bool((zeros_and_ones == x[0]).all(1).any()) for x, _ in task)
    fives = replace(DIGITS, train_labels=torch.full_like(DIGITS.train_labels, 5))
    with pytest.raises(ValueError, match="there is no 0 or no 1 in its part train"):
        ConcatenatedDigits(fives, 2)


def back(task: UnrolledColour, x: Tensor) -> Tensor:
    """The image (3, side, side) in [0, 1] that a sequence shows."""
    return (x * task.scale + task.mean).T.reshape(3, task.side, task.side)


def test_colour_images_are_unrolled_three_values_a_step() -> None:
    images = colour()
    task = UnrolledColour(images, "test")
    x, y = task[3]
    assert x.shape == (1024, 3) and y == 3
    assert torch.allclose(back(task, x).flatten(), images.test_images[3], atol=1e-6)
    seen = torch.cat([(images.train_images.view(-1, 3, 1024)[i].T - task.mean) / task.scale for i in range(8)])
    assert bool((seen.mean(0).abs() < 1e-5).all()) and bool(((seen.square().mean(0) - 1).abs() < 1e-5).all())


def views(images: ImageSet, index: int) -> dict[tuple[int, int, int], Tensor]:
    """Every shift of a training image by up to an eighth of its side, plain and mirrored."""
    side, shift = images.side, images.side // 8
    wide = torch.nn.functional.pad(images.train_images[index].view(3, side, side), [shift] * 4)
    places = range(2 * shift + 1)
    plain = {(top, left): wide[:, top : top + side, left : left + side] for top in places for left in places}
    return {(*place, mirror): view.flip(-1) if mirror else view for place, view in plain.items() for mirror in (0, 1)}


def seen_views(images: ImageSet, index: int, draws: int) -> set[tuple[int, int, int]]:
    possible = views(images, index)
    stacked, seen = torch.stack(list(possible.values())), set()
    for seed in range(draws):
        task = UnrolledColour(images, seed=seed)
        ((match,),) = ((stacked - back(task, task[index][0])).abs().amax((1, 2, 3)) < 1e-5).nonzero().tolist()
        seen.add(list(possible)[match])
    return seen


def test_training_images_are_shifted_up_to_an_eighth_and_mirrored_and_nothing_else() -> None:
    seen = seen_views(colour(), 2, 300)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert {mirror for _, _, mirror in seen} == {0, 1}
    task = UnrolledColour(colour())
    assert torch.equal(task[2][0], task[2][0])


def test_digits_in_cifars_place_are_grey_and_not_mirrored() -> None:
    images = load_cifar()
    assert (images.channels, images.side, images.pixels, images.mirrors) == (3, 8, 192, False)
    assert torch.equal(images.train_images.view(-1, 3, 64)[:, 1], DIGITS.train_images)
    seen = seen_views(images, 3, 60)
    assert {mirror for _, _, mirror in seen} == {0} and {top for top, _, _ in seen} == {0, 1, 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisePadded(DIGITS, 0), "length: 0"),
        (lambda: RepeatedPixels(DIGITS, 0), "repeats: 0"),
        (lambda: RepeatedPixels(DIGITS, 1, inputs=0), "inputs: 0"),
        (lambda: RepeatedPixels(DIGITS, 1, blank_rows=-1), "blank_rows: -1"),
        (lambda: ConcatenatedDigits(DIGITS, 0), "digits: 0"),
        (lambda: ConcatenatedDigits(DIGITS, 61), "digits: 61"),
        (lambda: ConcatenatedDigits(DIGITS, 2, repeats=0), "repeats: 0"),
    ],
)
def test_what_is_not_allowed_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
