"""isornn data check and fetch."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isornn.cli import app
from isornn.tasks import known_sets
from isornn.tasks.data_files import KnownSet
from tasks.made_files import binary_batch, cifar, mnist, python_batch


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300", "no_proxy": "*"})


def states(folder: Path, code: int) -> dict[str, str]:
    result = run("data", "check", folder, "--json")
    assert (result.exit_code, result.stderr) == (code, ""), result.output
    return {Path(file["file"]).name: file["state"] for file in json.loads(result.stdout)["files"]}


def test_check_says_what_is_there_what_is_missing_and_what_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(b"short")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    cifar(tmp_path, python_batch)
    cifar(tmp_path / "cifar-10-batches-bin", binary_batch, ".bin")
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    (tmp_path / "ptb.train.txt").write_text("a b\n")
    (tmp_path / "book.txt").write_text("a book")
    (tmp_path / "Made").mkdir()
    (tmp_path / "Made" / "Made_TRAIN.tsv").write_text("1\t2\t3\n")
    (tmp_path / "Made" / "Made_TEST.tsv").write_text("1\t2\tx\n")
    assert states(tmp_path, 1) == {
        "train-images-idx3-ubyte.gz": "other content",
        "train-labels-idx1-ubyte.gz": "other content",
        "t10k-images-idx3-ubyte": "damaged",
        "t10k-labels-idx1-ubyte": "missing",
        **{f"data_batch_{number}": "other content" for number in range(1, 6)},
        "test_batch": "other content",
        **{f"data_batch_{number}.bin": "no checksum known" for number in range(1, 6)},
        "test_batch.bin": "missing",
        "ptb.train.txt": "other content",
        "ptb.valid.txt": "missing",
        "ptb.test.txt": "missing",
        "book.txt": "no checksum known",
        "Made_TRAIN.tsv": "no checksum known",
        "Made_TEST.tsv": "damaged",
    }
    table = run("data", "check", tmp_path)
    assert table.exit_code == 1 and "sizes (6, 28, 28)" in table.stdout and "not there: fashion-mnist" in table.stdout


def test_check_knows_published_files_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_sets.PTB.files, "ptb.train.txt", f"sha256:{hashlib.sha256(b'a').hexdigest()}")
    for name in known_sets.PTB.files:
        (tmp_path / name).write_bytes(b"a")
    assert states(tmp_path, 0) == {
        "ptb.train.txt": "as published",
        "ptb.valid.txt": "other content",
        "ptb.test.txt": "other content",
    }


def test_check_knows_published_time_series_and_those_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gun_point = next(series for series in known_sets.SERIES if series.name == "GunPoint")
    text = b"@classLabel true 1 2\n@data\n0.5,1:1\n"
    monkeypatch.setitem(gun_point.files, "GunPoint_TRAIN.ts", f"sha256:{hashlib.sha256(text).hexdigest()}")
    (tmp_path / "GunPoint").mkdir()
    for name in gun_point.files:
        (tmp_path / "GunPoint" / name).write_bytes(text)
    assert states(tmp_path, 0) == {"GunPoint_TRAIN.ts": "as published", "GunPoint_TEST.ts": "other content"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "GunPoint_TEST.ts").write_bytes(b"@data\n0.5,x:1\n")
    (tmp_path / "GunPoint" / "GunPoint_TEST.ts").unlink()
    assert states(tmp_path, 1) == {"GunPoint_TRAIN.ts": "as published", "GunPoint_TEST.ts": "damaged"}


def test_an_empty_folder_has_nothing_and_none_is_refused(tmp_path: Path) -> None:
    assert states(tmp_path, 1) == {}
    result = run("data", "check", "nowhere")
    assert result.exit_code == 2
    assert result.stderr == "isornn: DIR: 'nowhere' is not allowed; it must be a folder\n"


def test_fetch_takes_a_set_from_a_mirror_and_refuses_unknown_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "one.txt").write_text("one")
    checksum = f"sha256:{hashlib.sha256(b'one').hexdigest()}"
    made = KnownSet("made", "Made", "made", "terms of use", {"one.txt": checksum}, ("",), ())
    monkeypatch.setattr(known_sets, "KNOWN", (made,))
    result = run("data", "fetch", "made", tmp_path / "data", "--mirror", source.as_uri())
    assert result.exit_code == 0 and result.stdout.strip() == str(tmp_path / "data" / "made" / "one.txt")
    assert "Made: terms of use" in result.stderr
    (source / "one.txt").write_text("two")
    result = run("data", "fetch", "made", tmp_path / "other", "--mirror", source.as_uri())
    assert result.exit_code == 1 and "another checksum" in result.stderr and "Traceback" not in result.output
    result = run("data", "fetch", "other", tmp_path)
    assert result.exit_code == 2 and "'other' is not a known data set; they are made" in result.stderr
    assert "did you mean made? they are made" in run("data", "fetch", "mad", tmp_path).stderr
    result = run("data", "fetch", "made", source / "one.txt")
    assert result.exit_code == 2 and result.stderr.endswith("is not allowed; it must be a folder\n")
    result = run("data", "fetch", "made", tmp_path / "third", "--mirror", "nowhere")
    assert result.exit_code == 2 and "--mirror: 'nowhere' is not allowed; it must be an address" in result.stderr
    assert not (tmp_path / "third").exists()


def test_the_group_alone_is_refused_in_one_line_and_explains_itself_when_asked() -> None:
    result = run("data")
    said = "isornn: COMMAND is needed; it is one of check, fetch\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)
    for words in (["data"], ["data", "check"], ["data", "fetch"]):
        result = run(*words, "--help")
        assert result.exit_code == 0 and "Usage" in result.stdout


@pytest.mark.parametrize("name", ["A_TRAIN.ts", "a.txt", "test_batch.bin", "train-images-idx3-ubyte"])
def test_a_file_of_more_than_a_gigabyte_is_not_read(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate((1 << 30) + 1)
    result = run("data", "check", tmp_path, "--json")
    assert result.exit_code == 1
    told = " ".join(each["detail"] for each in json.loads(result.stdout)["files"])
    assert "1,073,741,825 bytes, the most is 1,073,741,824" in told


def test_a_gzip_file_that_unpacks_to_more_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isornn.tasks.data_files.MOST_BYTES", 1000)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a" * 1001))
    result = run("data", "check", tmp_path, "--json")
    assert "unpacks to more than 1,000 bytes" in json.loads(result.stdout)["files"][0]["detail"]
