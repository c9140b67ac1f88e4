"""CIFAR-10's two versions, from files made in the same formats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isornn.tasks import DataError, load_cifar
from isornn.tasks.cifar import parse_binary, parse_python
from tasks.made_files import binary_batch, cifar, cifar_batch, evil_batch, python_batch

pytestmark = pytest.mark.filterwarnings("ignore:by their checksums")
FILE = Path("data_batch_1")


@pytest.mark.parametrize(
    ("write", "ending", "below"),
    [
        (python_batch, "", "cifar-10-batches-py"),
        (python_batch, "", "."),
        (binary_batch, ".bin", "cifar-10-batches-bin"),
        (binary_batch, ".bin", "."),
    ],
)
def test_both_versions_give_the_same_images(write: object, ending: str, below: str, tmp_path: Path) -> None:
    cifar(tmp_path / below, write, ending)  # type: ignore[arg-type]
    images = load_cifar(tmp_path)
    batches = [cifar_batch(number) for number in range(6)]
    expected = torch.cat([batch[0] for batch in batches[:5]]).float() / 255
    assert torch.equal(images.train_images, expected) and torch.equal(images.test_labels, batches[5][1])
    assert (images.valid, images.channels, images.side, images.mirrors) == (4, 3, 32, True)
    # A channel after the other, each row by row.
    blue = images.test_images.view(-1, 3, 32, 32)[1, 2, 5, 7] * 255
    assert round(float(blue)) == int(batches[5][0][1, 2048 + 5 * 32 + 7])


def test_files_of_python_that_are_not_the_published_ones_are_told(tmp_path: Path) -> None:
    cifar(tmp_path, python_batch)
    with pytest.warns(UserWarning, match=r"by their checksums .* CIFAR-10: data_batch_1, .*, test_batch"):
        assert load_cifar(tmp_path).name == "images in CIFAR-10's form"


def test_a_missing_file_names_all_that_are_expected(tmp_path: Path) -> None:
    cifar(tmp_path, python_batch)
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"CIFAR-10 is data_batch_1, .* data_batch_5, test_batch, all there or in"):
        load_cifar(tmp_path)


def test_a_pickle_that_would_run_something_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="not a pickled batch of CIFAR-10 .*print has no place in it"):
        parse_python(evil_batch(), FILE)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (python_batch(torch.zeros(2, 100).byte(), torch.zeros(2).long()), "no array of bytes"),
        (python_batch(torch.zeros(2, 3072), torch.zeros(2).long()), "no array of bytes"),
        (python_batch(torch.zeros(2, 3072).byte(), torch.zeros(3).long()), "no list of 2 whole numbers"),
        (python_batch(torch.zeros(2, 3072).byte(), torch.zeros(2)), "no list of 2 whole numbers"),
        (python_batch(torch.zeros(2, 3072).byte(), torch.tensor([0, 10])), "labels from 0 to 10"),
        (python_batch(torch.zeros(0, 3072).byte(), torch.zeros(0).long()), "no images"),
        (b"\x80\x02]q\x00.", "no array of bytes"),
        (b"", "not a pickled batch .*EOFError"),
    ],
)
def test_what_is_wrong_with_a_python_batch_is_said(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"data_batch_1: {message}"):
        parse_python(data, FILE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are not records of 3073"),
        (bytes(3072), "3072 bytes are not records of 3073 bytes; truncated"),
        (bytes([10]) + bytes(3072), "label 10, expected 0 to 9"),
    ],
)
def test_what_is_wrong_with_a_binary_batch_is_said(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_binary(data, FILE)


WHOLE = python_batch(*cifar_batch(0, 2))


@given(st.data())
def test_a_damaged_python_batch_is_read_right_or_refused(data: st.DataObject) -> None:
    """Bytes changed or cut off anywhere: two images of ten classes, or a `DataError`, and nothing else."""
    damaged = bytearray(WHOLE)
    head = [place for place in range(len(WHOLE)) if not 200 < place < len(WHOLE) - 200]
    for place in data.draw(st.lists(st.sampled_from(head), max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(WHOLE)), st.integers(0, len(WHOLE))))
    try:
        images, labels = parse_python(bytes(damaged[:cut]), FILE)
    except DataError:
        return
    assert images.shape == (len(labels), 3072) and bool(((images >= 0) & (images <= 1)).all())
    assert bool(((labels >= 0) & (labels <= 9)).all())


@given(st.binary(max_size=3 * 3073))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    try:
        images, labels = parse_binary(data, FILE)
    except DataError:
        assert not data or len(data) % 3073 or max(data[::3073]) > 9
    else:
        assert binary_batch((images * 255).round().byte(), labels) == data
