"""An image, then noise."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from isornn.tasks import batches, held_out, load_digits, noise_padded
from isornn.tasks.noise_padded import standardised


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_each_first_step_is_the_image_of_its_label() -> None:
    digits = standardised(load_digits())
    for x, labels in islice(batches(load_digits(), 3, 16, seeded()), 5):
        where = (x[0, :, None] == digits.train_images).all(-1)
        assert where.any(-1).all()
        assert torch.equal(digits.train_labels[where.int().argmax(-1)], labels)


def test_image_and_noise_have_the_same_size_and_noise_is_white() -> None:
    x, _ = next(batches(load_digits(), 200, 500, seeded()))
    assert float(x[0].square().mean()) == pytest.approx(1, abs=0.05)
    noise = x[1:].double()
    entries = noise.numel()
    assert abs(float(noise.mean())) < 5 / entries**0.5
    assert abs(float(noise.square().mean()) - 1) < 5 * (2 / entries) ** 0.5
    for shifted in (noise[1:] * noise[:-1], noise[:, 1:] * noise[:, :-1], noise[..., 1:] * noise[..., :-1]):
        assert abs(float(shifted.mean())) < 5 / shifted.numel() ** 0.5


def test_a_seed_gives_the_same_batches_and_each_batch_is_another() -> None:
    first, again = (list(islice(batches(load_digits(), 4, 8, seeded(3)), 3)) for _ in range(2))
    for (x, y), (x_again, y_again) in zip(first, again, strict=True):
        assert torch.equal(x, x_again) and torch.equal(y, y_again)
    assert not torch.equal(first[0][0], first[1][0])
    assert not torch.equal(first[0][0], next(batches(load_digits(), 4, 8, seeded(4)))[0])


def test_held_out_is_every_test_digit_once_and_none_of_training() -> None:
    digits = standardised(load_digits())
    found = list(held_out(load_digits(), 2, 100, seeded()))
    assert torch.equal(torch.cat([x[0] for x, _ in found]), digits.test_images)
    assert torch.equal(torch.cat([y for _, y in found]), digits.test_labels)
    assert [len(y) for _, y in found] == [100] * 5 + [10]


def test_one_step_is_the_image_alone_and_none_is_an_error() -> None:
    images = torch.ones(2, 3)
    assert torch.equal(noise_padded(images, 1, seeded()), images[None])
    with pytest.raises(ValueError, match="length: 0"):
        noise_padded(images, 0, seeded())
