"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isornn.records import RecordError, read_record, write_record


def test_what_was_written_is_read_and_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "record.json"
    for record in ({"a": [1, 2.5, None]}, {"b": "other"}):
        write_record(file, record)
        assert read_record(file) == record
    assert os.listdir(file.parent) == ["record.json"]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    write_record(file, {"kept": True})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(file, {"bad": float("nan")})

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_record(file, {"kept": False})
    assert read_record(file) == {"kept": True}
    assert os.listdir(tmp_path) == ["record.json"]


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="gone.json: not readable"):
        read_record(tmp_path / "gone.json")
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(RecordError, match="half.json: not JSON"):
        read_record(tmp_path / "half.json")
