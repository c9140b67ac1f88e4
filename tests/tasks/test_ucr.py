"""The archives' files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isornn.tasks import DataError, Series, load_series, one_pass
from isornn.tasks.ucr import read_series

HEADER = """# made
@problemName Made
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength false
@classLabel true walking resting
@data
"""
TS = HEADER + "1,2,3:4,5,6:walking\n-1e0, 2 :0.5,7:resting\n"


def write(folder: Path, train: str, test: str, ending: str) -> None:
    (folder / f"Made_TRAIN{ending}").write_text(train)
    (folder / f"Made_TEST{ending}").write_text(test)


def test_ts_files_have_dimensions_and_lengths(tmp_path: Path) -> None:
    (tmp_path / "Made").mkdir()
    write(tmp_path / "Made", TS, TS, ".ts")
    found = load_series("Made", tmp_path)
    assert found.classes == ["resting", "walking"]
    task = Series(found, "test")
    assert (task.inputs, task.outputs, task.lengths_vary, task.source) == (2, 2, True, "Made")
    ((x, y, lengths),) = one_pass(task, 2)
    assert x[:, 0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert x[:, 1].tolist() == [[-1, 0.5], [2, 7], [0, 0]]
    assert (y.tolist(), lengths.tolist()) == ([1, 0], [3, 2])


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("lengths", [(4, 4), (2, 5)], ids=["equal", "unequal"])
def test_ts_files_of_all_four_forms_are_read(dimensions: int, lengths: tuple[int, int], tmp_path: Path) -> None:
    """One or several dimensions, equal lengths or not, headers as the archives have them."""
    equal = len(set(lengths)) == 1
    header = f"#made\n@problemName Made\n@timeStamps false\n@missing false\n@univariate {dimensions == 1}\n".lower()
    header += f"@dimensions {dimensions}\n" * (dimensions > 1)
    header += f"@equalLength {equal}\n".lower() + f"@seriesLength {lengths[0]}\n" * equal
    header += "@classLabel true 1 2\n@data\n"
    series = [torch.arange(float(length * dimensions)).reshape(length, dimensions) - 3 for length in lengths]
    lines = [
        ":".join(",".join(f"{value:.6f}" for value in column) for column in one.T.tolist()) + f":{label}\n"
        for label, one in enumerate(series, 1)
    ]
    write(tmp_path, header + "".join(lines), header + "".join(lines), ".ts")
    task = Series(load_series("Made", tmp_path), "test")
    assert (task.inputs, task.lengths_vary) == (dimensions, not equal)
    for item, one in enumerate(series):
        assert torch.equal(task[item][0], one) and task[item][1] == item


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (".tsv", "-1\t0.5\t1\t2\n1\t3\t4\t5\n"),
        (".txt", "  -1.0000000e+00   5.0e-01   1 2\n   1.0000000e+00 3 4 5\n"),
        (".txt", "-1,0.5,1,2\r\n1,3,4,5\r\n"),
    ],
)
def test_columns_are_a_label_then_values(ending: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, text, text, ending)
    found = load_series("Made", tmp_path)
    assert found.classes == ["-1", "1"]
    task = Series(found, "test")
    assert not task.lengths_vary and task[0][0].tolist() == [[0.5], [1], [2]] and task[1][1] == 1


@pytest.mark.parametrize(("ending", "text"), [(".ts", TS), (".tsv", "1\t2\n1\t3\n"), (".txt", "1,2\n1,3\n")])
def test_a_byte_order_mark_is_skipped(ending: str, text: str, tmp_path: Path) -> None:
    """It would else begin the label of the first series, or the header."""
    (plain := tmp_path / f"plain{ending}").write_text(text, encoding="utf-8")
    (marked := tmp_path / f"marked{ending}").write_text(text, encoding="utf-8-sig")
    assert read_series(marked)[1] == read_series(plain)[1]


def test_values_missing_at_the_end_of_a_line_end_the_series(tmp_path: Path) -> None:
    file = tmp_path / "Made_TRAIN.tsv"
    file.write_text("a\t1\t2\tNaN\tNaN\nb\t1\t2\t3\t4\n")
    series, labels = read_series(file)
    assert [len(one) for one in series] == [2, 4] and labels == ["a", "b"]


def test_every_fifth_training_series_is_for_validation(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2}\t{i}\n" for i in range(12))
    write(tmp_path, rows, rows, ".tsv")
    found = load_series("Made", tmp_path)
    values = {part: [float(x) for x, _ in Series(found, part)] for part in ("train", "valid")}
    assert values == {"valid": [4, 9], "train": [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.ts", HEADER, "no series"),
        ("a.ts", HEADER.replace("@data", ""), "no @data"),
        ("a.ts", "1,2:a\n", "line 1: not a line of the header"),
        ("a.ts", HEADER + "1,2:3,4:\n", "line 10: no label"),
        ("a.ts", HEADER + "1,2:3:a\n", "line 10: dimensions of 2, 1 values"),
        ("a.ts", HEADER + "1,2:3,4:a\n1,2:a\n", "line 11: 1 dimensions where others have 2"),
        ("a.ts", HEADER + "1,?:3,4:a\n", "line 10: a value is missing"),
        ("a.ts", HEADER + "1,x:3,4:a\n", "line 10: could not convert string to float: 'x'"),
        ("a.ts", HEADER + "1,inf:3,4:a\n", "line 10: a value is not finite"),
        ("a.ts", HEADER + "1,1e300:3,4:a\n", "line 10: a value is not finite"),
        ("a.ts", HEADER.replace("timeStamps false", "timeStamps true"), "line 3: time stamps are not supported"),
        ("a.ts", HEADER.replace("classLabel true walking resting", "classLabel false"), "line 8: series without"),
        ("a.tsv", "1\t2\tNaN\t3\n", "line 1: a value is missing"),
        ("a.tsv", "1\n", "line 1: dimensions of 0 values"),
        ("a.csv", "1,2\n", "its name must end in .ts or .tsv or .txt"),
        ("a.txt", "", "empty"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}: {message}"):
        read_series(tmp_path / name)


def test_files_that_do_not_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no Made_TRAIN.ts or Made_TRAIN.tsv or Made_TRAIN.txt; Made is Made_TRAIN, "):
        load_series("Made", tmp_path)
    write(tmp_path, "1\t2\n", "3\t2\n", ".tsv")
    with pytest.raises(DataError, match=r"class '3' is not among Made_TRAIN.tsv's: 1"):
        load_series("Made", tmp_path)
    write(tmp_path, TS, HEADER + "1:walking\n", ".ts")
    with pytest.raises(DataError, match="1 dimensions where Made_TRAIN.ts has 2"):
        load_series("Made", tmp_path)
    write(tmp_path, TS, TS, ".ts")
    with pytest.raises(DataError, match="Made: no series in its part valid"):
        Series(load_series("Made", tmp_path), "valid")
    with pytest.raises(ValueError, match="part: 'all' is not allowed"):
        Series(load_series("Made", tmp_path), "all")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no folder for Made"):
        load_series("Made")


@given(st.data())
def test_a_damaged_file_is_read_as_finite_series_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    ending = data.draw(st.sampled_from([".ts", ".tsv", ".txt"]))
    whole = (TS if ending == ".ts" else "-1\t0.5\t1\t2\n1\t3\t4\t5\n").encode()
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        damaged[place] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(b",:\t\n?@.ein9 ")))
    file = tmp_path_factory.mktemp("damaged") / f"Made{ending}"
    file.write_bytes(bytes(damaged)[: data.draw(st.integers(0, len(whole)))])
    try:
        series, labels = read_series(file)
    except DataError:
        return
    assert len(series) == len(labels) > 0 and all(labels)
    assert all(one.dim() == 2 and one.numel() and bool(torch.isfinite(one).all()) for one in series)
