"""Files from strangers: whatever they hold, every command that reads one refuses it in a line, soon and in little
memory. What would take hundreds of gigabytes is run with a limit, so that taking it is a failure and not the machine's.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from isornn.cli import app
from isornn.files import DEEPEST, parse_toml, read_json

MEMORY = 4 << 30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile_model.py").write_text("from torch import nn\nmodel = lambda: nn.Sequential(nn.GRU(3, 8))\n")
    return tmp_path


@contextmanager
def limited() -> Iterator[None]:
    """At most `MEMORY` more than what the process has; a pipe that is opened is written to after a while."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    # Whoever waits for a pipe's other end gets it, and what is read is no file of any kind.
    opener = threading.Timer(5, open_pipes)
    opener.start()
    try:
        yield
    finally:
        opener.cancel()
        resource.setrlimit(resource.RLIMIT_AS, before)


def open_pipes() -> None:
    for file in Path().glob("*"):
        if file.is_fifo():
            os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))


def called(*arguments: object) -> Result:
    with limited():
        return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})


def refused(*arguments: object) -> str:
    result = called(*arguments)
    assert result.exit_code == 2 and result.stdout == "", (result.output, result.exception)
    assert result.stderr.startswith("isornn: ") and result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr


def pipe(file: Path) -> None:
    os.mkfifo(file)


def device(file: Path) -> None:
    file.symlink_to("/dev/zero")


READERS = {
    "analyze": ("spec.json",),
    "spectrum": ("spec.json",),
    "train": ("run.toml",),
    "sweep": ("runs.toml",),
    "diagnose": ("weights.pt", "--cell", "lstm"),
    "diagnose safetensors": ("weights.safetensors", "--cell", "lstm"),
    "diagnose npy": ("hostile_model:model", "--data", "x.npy"),
    "diagnose pt": ("hostile_model:model", "--data", "x.pt"),
}


@pytest.mark.parametrize("made", [pipe, device])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file(reader: str, made: Callable[[Path], None]) -> None:
    arguments = list(READERS[reader])
    (name,) = (argument for argument in arguments if "." in argument)
    made(Path(name))
    assert "not a regular file" in refused(reader.split()[0], *arguments)


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 3000 + "]" * 3000, "nested more than"),
        ("[" * 500 + "]" * 500, "nested more than"),
        ('{"cell": "lstm", "gates": ' + '{"f": ' * 300 + "1" + "}" * 301, "nested more than"),
        ('{"cell": "lstm", "cell": "gru"}', "the key 'cell' is there twice"),
        ('{"cell": "lstm", "gates": {"f": {"bias_mean": 1, "bias_mean": 5}}}', "'bias_mean' is there twice"),
        ("[" + "9" * 5000 + "]", "it must be JSON"),
        (b"\xff\xfe", "it must be JSON"),
    ],
)
def test_specs(text: str | bytes, words: str) -> None:
    Path("spec.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refused("analyze", "spec.json")


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 2000) + " = 1",
        "[" + " . ".join(['"a"'] * 2000) + "]",
        "[base]\n" + ".".join(["a"] * 200_000) + " = 1",
        "x = " + "[" * 3000 + "]" * 3000,
        "x = " + "[" * 100 + "]" * 100,
    ],
)
def test_configurations(command: str, text: str) -> None:
    Path("run.toml").write_text(text)
    assert "nested more than" in refused(command, "run.toml")


def test_a_field_of_many_parts() -> None:
    Path("run.toml").write_text("updates = 1")
    assert f"at most {DEEPEST} parts" in refused("train", "run.toml", "--set", ".".join(["a"] * 2000) + "=1")


def test_what_is_nested_as_deep_as_allowed_is_read(tmp_path: Path) -> None:
    assert parse_toml(".".join("a" * (DEEPEST - 1)) + " = 1")
    (tmp_path / "a.json").write_text("[" * DEEPEST + "]" * DEEPEST)
    assert read_json(tmp_path / "a.json")
    rates = ", ".join(["0.5"] * 1000)
    assert len(parse_toml(f'x = [{rates}]\ny = "{" . ".join("abc")}"')["x"]) == 1000


# -- weights and data -------------------------------------------------------------------------------------------------


class Built:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def lstm(**changes: Any) -> dict[str, Any]:
    return {**nn.LSTM(2, 4).state_dict(), **changes}


def nested() -> Any:
    inner: dict[str, Any] = {}
    for _ in range(3000):
        inner = {"a": inner}
    return inner


def endless() -> Any:
    found: dict[str, Any] = {"a": 1}
    found["self"] = found
    return found


WEIGHTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a layer of a high number": (lambda: lstm(weight_ih_l99999=torch.zeros(1)), "weight_ih_l99999: 99999"),
    "a number of many digits": (lambda: lstm(**{"weight_ih_l" + "9" * 5000: torch.zeros(1)}), ""),
    "layers that are not there": (lambda: lstm(weight_ih_l1=torch.zeros(1)), "bias_hh_l1"),
    "strides of 0": (lambda: lstm(weight_hh_l0=torch.zeros(1).expand(400_000, 100_000)), "bytes"),
    "many of a large one": (lambda: {f"w{k}": torch.zeros(1000)[:] for k in range(3)} | shared(), "bytes"),
    "a bias of another size": (lambda: lstm(bias_ih_l0=torch.zeros(5)), "bias_ih_l0: [5]"),
    "float8": (lambda: {k: v.to(torch.float8_e4m3fn) for k, v in lstm().items()}, "float8_e4m3fn"),
    "whole numbers": (lambda: {k: v.int() for k, v in lstm().items()}, "int32"),
    "complex numbers": (lambda: {k: v.to(torch.complex64) for k, v in lstm().items()}, "complex64"),
    "without numbers": (lambda: {k: v.to("meta") for k, v in lstm().items()}, "meta"),
    "sparse": (lambda: {k: v.to_sparse() for k, v in lstm().items()}, "sparse"),
    "of other names": (lambda: {name.replace("weight", "w"): v for name, v in lstm().items()}, "'w_ih_l0, w_hh_l0"),
    "nested": (nested, "state dict"),
    "endless": (endless, "state dict"),
    "a projection without columns": (lambda: lstm(weight_hr_l0=torch.tensor(1.0)), "weight_hr_l0"),
}


def shared() -> dict[str, Any]:
    whole = torch.zeros(100_000)
    return {f"weight_ih_l{k}": whole.view(1, -1) for k in range(40)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", WEIGHTS)
def test_weights(made: str) -> None:
    content, words = WEIGHTS[made]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    torch.save(content(), "weights.pt")
    sys.setrecursionlimit(before)
    result = called("diagnose", "weights.pt", "--cell", "lstm", "--length", 5)
    if made == "a number of many digits":  # no layer's, so that it is left out
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 2 and result.stdout == "", (result.output, result.exception)
    assert words in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_a_file_that_unpacks_to_more_than_it_has() -> None:
    torch.save(lstm(), "whole.pt")
    with zipfile.ZipFile("whole.pt") as whole, zipfile.ZipFile("weights.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for part in whole.infolist():
            packed.writestr(part.filename, whole.read(part) if part.filename != "whole/data/0" else bytes(1 << 24))
    assert "bytes unpack to 16,7" in refused("diagnose", "weights.pt", "--cell", "lstm")


def test_a_text_is_no_pickle() -> None:
    Path("weights.pt").write_text("hello, world")
    assert "it is no pickle, or a damaged one" in refused("diagnose", "weights.pt", "--cell", "lstm")


def test_a_batch_whose_arguments_have_no_names() -> None:
    torch.save({1: torch.zeros(3, 2, 3)}, "x.pt")
    assert "a dict of tensors by argument" in refused("diagnose", "hostile_model:model", "--data", "x.pt")


def test_a_number_that_no_float_holds() -> None:
    lines = (
        "updates = 1",
        'task = {name = "adding", length = 5}',
        'optimiser = {name = "adam", rate = 0.1}',
        f'model = {{name = "spectral", hidden = 4, margin = 1{"0" * 400}}}',
    )
    Path("run.toml").write_text("\n".join(lines))
    assert "model.margin" in refused("train", "run.toml")


def test_a_pickle_that_calls_something_is_not_run() -> None:
    Path("weights.pt").write_bytes(pickle.dumps(Built(os.mkdir, "made")))
    said = refused("diagnose", "weights.pt", "--cell", "lstm")
    assert "tensors only" in said and "Detected pickle protocol" not in said
    assert not Path("made").exists()


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return out.getvalue() + data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (npy((2_500_000_000_000,)), "without pickle"),
        (npy((2**62, 2**62)), "without pickle"),
        (npy((-1, 3)), "without pickle"),
        (npy((0, 3, 2)), "it must hold numbers; its shape is (0, 3, 2)"),
        (b"", "without pickle"),
        (npy((5, 2, 3), bytes(100)), "without pickle"),
    ],
)
def test_arrays(data: bytes, words: str) -> None:
    Path("x.npy").write_bytes(data)
    assert words in refused("diagnose", "hostile_model:model", "--data", "x.npy")


def test_safetensors_of_unknown_numbers() -> None:
    header = json.dumps({"weight_ih_l0": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    Path("weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    assert "a file of safetensors" in refused("diagnose", "weights.safetensors", "--cell", "lstm")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_escape_codes_in_names_do_not_reach_the_terminal(flags: tuple[str, ...]) -> None:
    hostile = "a\x1b[2J\x07\x9b31m"
    torch.save({f"{hostile}.{name}": value for name, value in lstm().items()}, "weights.pt")
    result = called("diagnose", "weights.pt", "--cell", "lstm", "--length", 20, *flags)
    assert result.exit_code == 0, (result.output, result.exception)
    assert not [c for c in result.output if not c.isprintable() and c != "\n"]
    assert "x1b[2J" in result.stdout or "u001b[2J" in result.stdout
