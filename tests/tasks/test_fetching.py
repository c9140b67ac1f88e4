"""Downloads from a server on the loopback that can break off, lie and refuse."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isornn.tasks.data_files import KnownSet
from isornn.tasks.fetching import FetchError, fetch

CONTENT = {"one": b"first file " * 500, "two": b"second"}
GOOD = {f"/{name}.gz": gzip.compress(data, mtime=0) for name, data in CONTENT.items()}


class Server(ThreadingHTTPServer):
    """Serves ``files``; at most ``limit`` bytes of each answer, with ranges if ``ranges``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(GOOD)
        self.limit: int | None = None
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        data = self.server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start = 0
        if wanted is not None and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:][: self.server.limit])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def known(*mirrors: str) -> KnownSet:
    files = {name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in CONTENT.items()}
    return KnownSet("made", "Made", "below", "terms", files, ("", ".gz"), mirrors)


def left(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "below").iterdir())


def test_files_come_under_their_names_and_only_once(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    files = fetch(known(server.address), tmp_path, progress=lambda *what: told.append(what))
    assert [gzip.decompress(file.read_bytes()) for file in files] == list(CONTENT.values())
    assert left(tmp_path) == ["one.gz", "two.gz"]
    assert told[0][0] == "one.gz" and told[0][1] == told[0][2] == len(GOOD["/one.gz"])
    assert fetch(known(server.address), tmp_path) == files
    assert server.asked == [("/one.gz", None), ("/two.gz", None)]


def test_a_file_that_is_there_unpacked_is_enough_and_a_wrong_one_is_fetched_again(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "one").write_bytes(CONTENT["one"])
    (tmp_path / "below" / "two.gz").write_bytes(b"broken")
    fetch(known(server.address), tmp_path)
    assert server.asked == [("/two.gz", None)]
    assert gzip.decompress((tmp_path / "below" / "two.gz").read_bytes()) == CONTENT["two"]


def test_a_download_that_broke_off_is_refused_and_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.limit = 30
    with pytest.raises(FetchError, match=r"one.gz could not be fetched: http://.*: broke off after 30 of \d+ bytes"):
        fetch(known(server.address), tmp_path)
    (part,) = left(tmp_path)
    assert part.startswith(".one.") and (tmp_path / "below" / part).stat().st_size == 30
    server.limit = None
    fetch(known(server.address), tmp_path)
    assert server.asked[1] == ("/one.gz", "bytes=30-")
    assert left(tmp_path) == ["one.gz", "two.gz"]


def test_a_server_without_ranges_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    server.limit, server.ranges = 30, False
    with pytest.raises(FetchError):
        fetch(known(server.address), tmp_path)
    server.limit = None
    fetch(known(server.address), tmp_path)
    assert left(tmp_path) == ["one.gz", "two.gz"]


def test_a_part_that_is_whole_is_only_checked(server: Server, tmp_path: Path) -> None:
    server.limit = 30
    with pytest.raises(FetchError):
        fetch(known(server.address), tmp_path)
    (part,) = left(tmp_path)
    (tmp_path / "below" / part).write_bytes(GOOD["/one.gz"])
    server.limit = None
    fetch(known(server.address), tmp_path)
    assert left(tmp_path) == ["one.gz", "two.gz"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (gzip.compress(b"other", mtime=0), "another checksum than sha256:.*thrown away"),
        (GOOD["/one.gz"][:20], r"what came is damaged \(.*truncated.*thrown away"),
        (b"<html>not found</html>", r"what came is damaged \(.*not a gzip file"),
    ],
)
def test_what_is_not_the_published_file_is_thrown_away(
    server: Server, tmp_path: Path, sent: bytes, message: str
) -> None:
    server.files["/one.gz"] = sent
    with pytest.raises(FetchError, match=message):
        fetch(known(server.address), tmp_path)
    assert left(tmp_path) == []


def test_the_next_mirror_is_asked_and_all_are_named_if_none_has_it(server: Server, tmp_path: Path) -> None:
    server.files |= {f"/second{path}": data for path, data in GOOD.items()}
    del server.files["/one.gz"]
    fetch(known(server.address, f"{server.address}/second/"), tmp_path)
    assert left(tmp_path) == ["one.gz", "two.gz"]
    (tmp_path / "below" / "one.gz").unlink()
    with pytest.raises(FetchError, match=r"/one.gz: HTTP status 404; http://127.0.0.1:1/one.gz: .*refused"):
        fetch(known("unused"), tmp_path, mirrors=[server.address, "http://127.0.0.1:1"])
    with pytest.raises(FetchError, match=r"one.gz: unknown url type"):
        fetch(known("unused"), tmp_path, mirrors=["nowhere"])


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def test_an_archive_is_unpacked_into_its_files_and_no_others(server: Server, tmp_path: Path) -> None:
    packed = archive({f"inside/{name}": data for name, data in CONTENT.items()} | {"../outside": b"no"})
    server.files["/all.tar.gz"] = packed
    made = known(server.address)
    checksum = f"md5:{hashlib.md5(packed).hexdigest()}"
    whole = KnownSet("made", "Made", "below", "terms", made.files, ("",), made.mirrors, ("all.tar.gz", checksum))
    fetch(whole, tmp_path)
    assert left(tmp_path) == ["one", "two"] and [file.name for file in tmp_path.iterdir()] == ["below"]
    assert fetch(whole, tmp_path) and server.asked == [("/all.tar.gz", None)]


def wheel(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return packed.getvalue()


def packed_set(server: Server, archive_name: str) -> KnownSet:
    """The made set in the archive that the server has under this name."""
    made, checksum = known(server.address), hashlib.md5(server.files[f"/{archive_name}"]).hexdigest()
    return KnownSet("made", "Made", "below", "", made.files, ("",), made.mirrors, (archive_name, f"md5:{checksum}"))


def test_a_wheel_is_unpacked_into_its_files_and_no_others(server: Server, tmp_path: Path) -> None:
    inside = {f"package/data/{name}": data for name, data in CONTENT.items()}
    server.files["/made-1.0-py3-none-any.whl"] = wheel(inside | {"../outside": b"no", "package/__init__.py": b""})
    whole = packed_set(server, "made-1.0-py3-none-any.whl")
    assert [file.read_bytes() for file in fetch(whole, tmp_path)] == list(CONTENT.values())
    assert left(tmp_path) == ["one", "two"] and [file.name for file in tmp_path.iterdir()] == ["below"]
    assert fetch(whole, tmp_path) and server.asked == [("/made-1.0-py3-none-any.whl", None)]


def test_a_wheel_that_lacks_a_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["/made.whl"] = wheel({"package/one": CONTENT["one"]})
    with pytest.raises(FetchError, match=r"made.whl: its two is missing or not the published one"):
        fetch(packed_set(server, "made.whl"), tmp_path)


def test_an_archive_that_lacks_a_file_is_refused(server: Server, tmp_path: Path) -> None:
    packed = server.files["/all.tar.gz"] = archive({"inside/one": CONTENT["one"]})
    checksum = f"md5:{hashlib.md5(packed).hexdigest()}"
    made = known(server.address)
    whole = KnownSet("made", "Made", "below", "terms", made.files, ("",), made.mirrors, ("all.tar.gz", checksum))
    with pytest.raises(FetchError, match=r"all.tar.gz: its two is missing or not the published one"):
        fetch(whole, tmp_path)
