"""Files of data, which ``isornn memory``, ``critical`` and ``diagnose`` read alike."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shell
from isornn.cli.data_files import read_batch

LENGTHS = np.array([50, *[40] * 29])
INPUTS = np.random.default_rng(0).normal(size=(30, 60, 2))
TARGETS = INPUTS[:, 35, 0]


def saved(file: Path, **arrays: np.ndarray) -> Path:
    if file.suffix == ".npz":
        np.savez(file, **arrays)  # type: ignore[arg-type]
    else:
        torch.save({name: torch.tensor(array) for name, array in arrays.items()}, file)
    return file


@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_what_memory_reads_critical_reads(ending: str, tmp_path: Path) -> None:
    inputs = INPUTS.copy()
    inputs[1:, 40:] = np.nan  # behind the sequences' ends
    file = saved(tmp_path / f"data.{ending}", inputs=inputs, targets=TARGETS, lengths=LENGTHS)
    found = shell.run("memory", file, "--json")
    assert found.exit_code == 0 and json.loads(found.stdout)["sequences"] == 30
    done = shell.run("critical", "--cell", "lstm", "--data", file)
    assert done.exit_code == 0 and "critical_(module, length=50, batch=batch)" in done.stdout, done.output
    within = np.concatenate([INPUTS[0, :50], *INPUTS[1:, :40]])
    assert f"standard deviation {within.std(0).mean():.3g}" in done.stderr


def test_what_memory_reads_is_a_batch(tmp_path: Path) -> None:
    file = saved(tmp_path / "data.npz", inputs=INPUTS, targets=TARGETS)
    model = nn.GRU(2, 3)
    batch = read_batch(file, model)
    assert batch.dtype == torch.float32 and torch.equal(batch, torch.tensor(INPUTS, dtype=torch.float32))
    by_name = read_batch(saved(file, inputs=INPUTS, targets=TARGETS, lengths=LENGTHS), model)
    assert list(by_name) == ["inputs", "lengths"] and by_name["lengths"].dtype == torch.int64


def test_numbers_that_torch_does_not_have(tmp_path: Path) -> None:
    file = saved(tmp_path / "data.npz", inputs=INPUTS.astype(np.longdouble), targets=TARGETS)
    result = shell.run("memory", file)
    assert result.exit_code == 2 and "inputs must hold numbers of a dtype that torch has too; its" in result.stderr


READERS = [("memory",), ("critical", "--cell", "lstm", "--data")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.csv", b"1,2", "its name must end in .npy, .npz or .pt"),
        ("absent.npz", None, "there is no such file"),
        ("absent.npy", None, "there is no such file"),
        ("absent.pt", None, "there is no such file"),
        ("data.npz", b"1,2", "it must be an .npz file of plain arrays (File is not a zip file)"),
        ("data.npy", b"1,2", "it must be an array that numpy reads without pickle"),
        ("data.pt", b"1,2", "it must be what torch.save wrote of tensors only"),
    ],
)
def test_all_refuse_in_the_same_words(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match="--data") as refused:
        read_batch(file, nn.Identity())
    assert words in str(refused.value)
    for reader in READERS:
        done = shell.run(*reader, file)
        assert done.exit_code == 2 and words in done.stderr, done.output


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.zeros(3, "datetime64[s]")])
def test_arrays_of_what_is_no_number_are_refused_by_their_dtype(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", array)
    np.savez(tmp_path / "data.npz", targets=array)
    for name, which in (("data.npy", "it"), ("data.npz", "targets")):
        said = shell.refusal(*READERS[0], tmp_path / name)
        assert said.endswith(f"is not allowed; {which} must hold numbers; its dtype is {array.dtype}\n")


def test_lengths_and_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "data.npz", inputs=INPUTS, lengths=LENGTHS + 20)
    assert "lengths" in shell.run(*READERS[1], file).stderr
    saved(file, inputs=INPUTS, labels=TARGETS)
    assert "its arrays are inputs, targets, lengths; it also has labels" in shell.run(*READERS[1], file).stderr
    saved(file, x=INPUTS)
    assert "it must have an array inputs, as numpy.savez writes; it has x" in shell.run(*READERS[1], file).stderr
