"""Download published data sets: interrupted downloads resume, and files are kept only if their checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from isornn.files import replacing
from isornn.tasks.data_files import DataError, KnownSet, content, find, matches

Progress = Callable[[str, int, int | None], None]

_CHUNK = 1 << 20
_PATIENCE = 30.0  # seconds without a byte


class FetchError(OSError):
    """A data set that no mirror has given whole and right; says what each of them did."""


def fetch(
    known: KnownSet, folder: Path, *, mirrors: Sequence[str] = (), progress: Progress | None = None
) -> list[Path]:
    """The files of a published data set in ``folder / known.folder``, from the first mirror that has them.

    Files that are there with the right checksum are not downloaded again. The partial file of an interrupted or failed
    download is kept in the same folder (``.NAME.*.part``), and the next call resumes it. A file gets its final name
    only when it is complete and its checksum is the published one.

    Args:
        known: which.
        folder: made if needed.
        mirrors: addresses to take it from; the known ones if none are given.
        progress: called with the file's name, the bytes so far and the total, None where the server does not give it.

    Returns:
        The files, in the set's order.

    Raises:
        FetchError: no mirror has a file whole and right.
        OSError: the folder cannot be written to.
    """
    target = folder / known.folder
    target.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda name, done, total: None)
    missing = [name for name in known.files if _right(target, known, name) is None]
    if missing and known.archive is not None:
        archive = target / known.archive[0]
        _download(archive, mirrors or known.mirrors, known.archive[1], Path.read_bytes, report)
        _unpack(archive, known)
        archive.unlink()
    elif missing:
        for name in missing:
            file = target / f"{name}{known.endings[-1]}"
            _download(file, mirrors or known.mirrors, known.files[name], content, report)
    return [file for file in (_right(target, known, name) for name in known.files) if file is not None]


def _right(target: Path, known: KnownSet, name: str) -> Path | None:
    """The file of this name, if it is there and is the published one."""
    file = find(target, name, known.endings)
    try:
        return file if file is not None and matches(content(file), known.files[name]) else None
    except DataError:
        return None


def _download(
    file: Path, mirrors: Sequence[str], checksum: str, held: Callable[[Path], bytes], progress: Progress
) -> None:
    """``file`` from the first mirror that gives one of which what is ``held`` has the checksum."""
    reasons = []
    for mirror in mirrors:
        address = f"{mirror.rstrip('/')}/{file.name}"
        try:
            _from(address, file, checksum, held, progress)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    raise FetchError(f"{file.name} could not be fetched: {'; '.join(reasons)}")


def _from(address: str, file: Path, checksum: str, held: Callable[[Path], bytes], progress: Progress) -> None:
    """Download to a part file of this address, check it, and put it in place."""
    # Two mirrors may have packed the same content differently: what one began, another cannot end.
    mark = hashlib.sha256(address.encode()).hexdigest()[:8]
    part = file.with_name(f".{file.stem}.{mark}.part{file.suffix}")
    _to_part(address, part, file.name, progress)
    try:
        right = matches(held(part), checksum)
    except DataError as error:
        part.unlink()
        raise FetchError(f"what came is damaged ({error}); it was thrown away") from None
    if not right:
        part.unlink()
        raise FetchError(f"what came has another checksum than {checksum}; it was thrown away")
    part.replace(file)


def _to_part(address: str, part: Path, name: str, progress: Progress) -> None:
    begun = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing is left to send: all of it is there, or more, which the checksum detects
            return
        raise FetchError(f"HTTP status {error.code}") from None
    with response:
        # A server that does not know of ranges sends all of it again.
        begun = begun if response.status == 206 else 0
        size = response.headers.get("Content-Length")
        total = None if size is None else begun + int(size)
        done = begun
        with part.open("ab" if begun else "wb") as out:
            while chunk := _read(response):
                out.write(chunk)
                done += len(chunk)
                progress(name, done, total)
    if total is not None and done < total:
        raise FetchError(f"broke off after {done} of {total} bytes; the next call goes on there")


def _read(response: http.client.HTTPResponse) -> bytes:
    """The next bytes, b"" at the end and where the connection ends early, which some Pythons raise for."""
    try:
        return response.read(_CHUNK)
    except http.client.IncompleteRead as error:
        return error.partial


def _unpack(archive: Path, known: KnownSet) -> None:
    """The set's files out of the archive, whatever folder they have in it."""
    content_of = _zipped if zipfile.is_zipfile(archive) else _tarred
    for name, data in content_of(archive, known.files).items():
        if not matches(data, known.files[name]):
            raise FetchError(f"{archive.name}: its {name} is missing or not the published one")
        with replacing(archive.with_name(name)) as new:
            new.write_bytes(data)


def _tarred(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """What the files of these names hold, b"" where there is none."""
    with tarfile.open(archive) as packed:
        members = {Path(member.name).name: member for member in packed.getmembers() if member.isfile()}
        sources = {name: packed.extractfile(members[name]) if name in members else None for name in names}
        return {name: b"" if source is None else source.read() for name, source in sources.items()}


def _zipped(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """As `_tarred`; Python's wheels are zip files."""
    with zipfile.ZipFile(archive) as packed:
        members = {Path(member).name: member for member in packed.namelist()}
        return {name: packed.read(members[name]) if name in members else b"" for name in names}
