"""``isornn memory``."""

import io
import json
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import isornn
import isornn.files
import shell

run = partial(shell.run, "memory")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The sample four steps before the last of each sequence, whose lengths differ."""
    draw = np.random.default_rng(0)
    inputs, lengths = draw.normal(size=(80, 20, 1)), draw.integers(10, 21, 80)
    file = tmp_path / "data.npz"
    np.savez(file, inputs=inputs, targets=inputs[np.arange(80), lengths - 5, 0], lengths=lengths)
    return file


def test_says_the_length_and_where_it_goes(data: Path) -> None:
    result = run(data, "--plot", data.parent / "memory.png")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "The last 6 steps of the inputs are enough.")
    assert "isornn.init.critical_(module, length=6, batch=batch)" in result.stdout
    assert (data.parent / "memory.png").stat().st_size > 10_000


def test_json_is_what_python_finds(data: Path) -> None:
    found = json.loads(run(data, "--json", "--longest", "12").stdout)
    with np.load(data) as arrays:
        same = isornn.memory(arrays["inputs"], arrays["targets"], lengths=arrays["lengths"], longest=12)
    assert found == same.to_dict()


@pytest.mark.parametrize(
    ("change", "arguments", "parts"),
    [
        ({"targets": None}, (), ("DATA", "an array targets")),
        ({"targets": np.zeros(3)}, (), ("isornn: targets: shape (3,)", "80 sequences")),
        ({"inputs": np.zeros((80, 20, 1)) * np.nan}, (), ("isornn: inputs: NaN",)),
        ({"inputs": np.zeros((80, 20, 0))}, (), ("DATA", "inputs must hold numbers; its shape is (80, 20, 0)")),
        ({"inputs": np.zeros((800, 2))}, (), ("one long series", "by inputs[:n * L].reshape(n, L, 2)")),
        ({"inputs": None, "x": np.zeros(3)}, (), ("an array inputs", "it has targets, lengths, x")),
        ({"targets": np.array([None] * 80)}, (), ("DATA", "plain arrays")),
        ({}, ("--longest", "0"), ("--longest: 0",)),
        ({}, ("--seed", "-1"), ("--seed",)),
        ({}, ("--plot", "figure.txt"), ("--plot", ".png")),
    ],
)
def test_what_is_refused(
    data: Path, change: dict[str, object], arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    with np.load(data) as arrays:
        kept = {name: value for name, value in ({**arrays} | change).items() if value is not None}
    np.savez(data, **kept)
    result = run(data, *arguments)
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert all(part in result.stderr for part in parts), result.stderr


def test_files_that_are_none(tmp_path: Path) -> None:
    text, single = tmp_path / "data.txt", tmp_path / "data.npy"
    text.write_text("inputs")
    np.save(single, np.zeros(3))
    assert "its name must end in .npy, .npz or .pt" in run(text).stderr
    assert "it must have an array targets, as numpy.savez writes; it has inputs" in run(single).stderr
    absent = run(tmp_path / "absent.npz")
    assert absent.exit_code == 2 and "there is no such file" in absent.stderr


def test_headers_that_say_more_than_is_there(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 5, 3)})
    single, packed = tmp_path / "data.npy", tmp_path / "data.npz"
    single.write_bytes(header.getvalue())
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inputs.npy", header.getvalue())
    for file, words in ((single, "an array that numpy reads"), (packed, "an .npz file of plain arrays")):
        result = run(file)
        assert result.exit_code == 2 and f"it must be {words}" in result.stderr, result.exception


def test_an_encrypted_archive(data: Path) -> None:
    content = bytearray(data.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(signature, place + 1)
    data.write_bytes(content)
    result = run(data)
    assert result.exit_code == 2 and "encrypted" in result.stderr, result.exception


@pytest.mark.parametrize("damaged", [b"{'descr': ((((((", b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, "])
def test_damaged_headers(damaged: bytes, tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    header = damaged.ljust(117) + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inputs.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    result = run(file)
    assert result.exit_code == 2 and "it must be an .npz file of plain arrays" in result.stderr, result.exception


def test_what_unpacks_to_more_than_data_may_have(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isornn.files, "MOST_DATA", 10_000)
    np.savez_compressed(data, inputs=np.zeros((80, 20, 1)), targets=np.zeros(80))
    assert data.stat().st_size < 1000
    result = run(data)
    assert result.exit_code == 2 and "unpacks to 13,696 bytes, the most is 10,000" in result.stderr


def test_arrays_that_nobody_asked_for_and_files_that_are_not_there_are_refused(data: Path) -> None:
    with np.load(data) as arrays:
        np.savez(data, inputs=arrays["inputs"], targets=arrays["targets"], length=arrays["lengths"])
    result = run(data)
    assert result.exit_code == 2 and "its arrays are inputs, targets, lengths; it also has length" in result.stderr
    for missing in (data.parent / "none.npz", data.parent):
        result = run(missing)
        assert result.exit_code == 2 and result.stderr.startswith("isornn: DATA.npz: ")
