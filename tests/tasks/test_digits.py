"""The embedded digits and the reader of MNIST's files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isornn.tasks import DataError, DataWarning, load_digits
from isornn.tasks.data_files import content
from isornn.tasks.idx import parse_idx
from tasks.made_files import IDX_FILES, idx, mnist

# The made files are not the published ones, and that is said; one test is of just that.
pytestmark = pytest.mark.filterwarnings("ignore:by their checksums")


def test_embedded_digits_are_a_split_of_the_whole_file_into_balanced_parts() -> None:
    digits = load_digits()
    images = torch.cat([digits.train_images, digits.test_images])
    assert images.shape == (1797, 64)
    assert images.dtype == torch.float32
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    # Row by row from the top left: the first image is a 0, dark in the middle and light in the corners.
    assert digits.train_labels[0] == 0
    assert images[0].view(8, 8)[3:5, 3:5].mean() < 0.1 < images[0].view(8, 8)[1, 2:5].mean()
    for labels in (digits.train_labels, digits.test_labels):
        assert (torch.bincount(labels).float() / len(labels) - 0.1).abs().max() < 0.01
    assert "CC BY 4.0" in digits.source


def test_no_test_digit_is_among_the_training_digits() -> None:
    digits = load_digits()
    assert torch.cdist(digits.test_images, digits.train_images).min() > 0


def test_idx_files_are_read_and_averaged_over_blocks(tmp_path: Path) -> None:
    held = mnist(tmp_path)
    digits = load_digits(tmp_path)
    assert (digits.train_images.shape, digits.test_images.shape) == ((6, 49), (3, 49))
    assert torch.equal(digits.train_labels, held[IDX_FILES[1]].long())
    assert torch.equal(digits.test_labels, held[IDX_FILES[3]].long())
    image, row, column = 2, 3, 5
    block = held[IDX_FILES[2]][image, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].double()
    assert float(digits.test_images[image, 7 * row + column]) == pytest.approx(float(block.mean()) / 255, rel=1e-6)


def test_blocks_may_be_smaller(tmp_path: Path) -> None:
    held = mnist(tmp_path)
    digits = load_digits(tmp_path, block=2)
    assert (digits.side, digits.name) == (14, "IDX images 28x28 pooled to 14x14")
    image, row, column = 2, 11, 5
    block = held[IDX_FILES[2]][image, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].double()
    assert float(digits.test_images[image, 14 * row + column]) == pytest.approx(float(block.mean()) / 255, rel=1e-6)


def test_a_block_of_one_pixel_is_the_image(tmp_path: Path) -> None:
    mnist(tmp_path)
    assert torch.equal(load_digits(tmp_path, block=1).test_images, load_digits(tmp_path, pooled=False).test_images)


def test_a_block_that_does_not_divide_the_images_is_refused() -> None:
    with pytest.raises(ValueError, match="block: 3 is not allowed; it must divide 28"):
        load_digits(block=3)


def replace(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / name if (folder / name).exists() else folder / f"{name}.gz"
        file.write_bytes(change(file.read_bytes()))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / IDX_FILES[3]).unlink(), "no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz"),
        (replace(IDX_FILES[2], lambda data: data[:-1]), "t10k-images-idx3-ubyte: truncated, 2367 bytes .* need 2368"),
        (replace(IDX_FILES[2], lambda data: data + b"0"), "t10k-images-idx3-ubyte: too long"),
        (replace(IDX_FILES[2], lambda data: data[:9]), "truncated in its header, 9 bytes of 16"),
        (replace(IDX_FILES[2], lambda data: b""), "magic number 0x is not"),
        (replace(IDX_FILES[2], lambda data: b"\0\0\x0d\3" + data[4:]), "magic number 0x00000d03 is not .* 0x00000803"),
        (replace(IDX_FILES[0], lambda data: data[:-12]), "train-images-idx3-ubyte.gz: truncated, the gzip stream"),
        (replace(IDX_FILES[0], lambda data: b"plain"), "train-images-idx3-ubyte.gz: not a gzip file"),
        (
            replace(IDX_FILES[0], lambda data: data[:40] + b"\xff" * 9 + data[49:]),
            "train-images-idx3-ubyte.gz: not a gzip",
        ),
        (
            replace(IDX_FILES[2], lambda data: idx(torch.zeros(3, 8, 8).byte())),
            r"sizes \(3, 8, 8\), expected \(n, 28, 28\)",
        ),
        (
            replace(IDX_FILES[3], lambda data: idx(torch.zeros(4).byte())),
            "t10k-labels-idx1-ubyte: 4 labels for 3",
        ),
        (replace(IDX_FILES[3], lambda data: idx(torch.full((3,), 10).byte())), "label 10, expected 0 to 9"),
    ],
)
def test_what_is_wrong_with_the_files_is_said(spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    mnist(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataError, match=message):
        load_digits(tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        load_digits(tmp_path / "nowhere")


def test_images_may_be_whole_and_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    held = mnist(tmp_path / "mnist")
    digits = load_digits(tmp_path, pooled=False)
    assert torch.equal(digits.train_images, held[IDX_FILES[0]].flatten(1).float() / 255)
    assert (digits.side, digits.valid, digits.name) == (28, 1, "IDX images 28x28")


def test_files_that_are_not_the_published_ones_are_told(tmp_path: Path) -> None:
    mnist(tmp_path)
    with pytest.warns(DataWarning, match="by their checksums .* MNIST or Fashion-MNIST: train-images-idx3-ubyte, "):
        load_digits(tmp_path)


def test_the_environment_may_name_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(tmp_path)
    monkeypatch.setenv("ISORNN_DATA", str(tmp_path))
    assert load_digits().name == "IDX images 28x28 pooled to 7x7"
    monkeypatch.setenv("ISORNN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere: no such folder \(ISORNN_DATA\)"):
        load_digits()
    monkeypatch.setenv("ISORNN_DATA", "")
    assert load_digits().name == "UCI digits 8x8"


@given(st.data())
def test_a_damaged_idx_file_is_refused_or_has_the_damaged_bytes(data: st.DataObject) -> None:
    whole = idx(torch.arange(12).byte().view(3, 4))
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        damaged[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole) + 3))
    read = bytes(damaged + b"abc")[:end]
    try:
        values = parse_idx(read, 2, Path("file"))
    except DataError:
        return
    assert idx(values) == read


@given(st.data())
def test_a_damaged_gzip_file_has_its_content_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = gzip.compress(b"ten digits" * 3, mtime=0)
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        damaged[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "file.gz"
    file.write_bytes(damaged[: data.draw(st.integers(0, len(whole)))])
    try:
        found = content(file)
    except DataError:
        return
    assert found == b"ten digits" * 3
