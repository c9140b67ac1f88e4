"""Checkpoints: one file that is whole or refused, written so that the one before it stays until it is."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from isornn.files import check_regular, read_bytes, replacing

_KIND = b"isornn checkpoint, sha256 "
_HEADER = len(_KIND) + 64 + 1


class CheckpointError(ValueError):
    """A file that is not the checkpoint it should be: names it and says why."""


def save_checkpoint(file: Path, content: dict[str, Any]) -> None:
    """Write tensors, numbers, strings, lists and mappings of them, atomically.

    The file is a line with the SHA-256 of the rest, and the rest `torch.save`'s.

    Raises:
        OSError: the folder is missing or cannot be written to.
    """
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    with replacing(file) as new:
        new.write_bytes(_header(hashlib.sha256(payload).hexdigest()) + payload)


def is_checkpoint(file: Path) -> bool:
    """Whether a file begins as `save_checkpoint` writes it.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    check_regular(file)
    with file.open("rb") as opened:
        return opened.read(len(_KIND)) == _KIND


def load_checkpoint(file: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU. Nothing but data is loaded: torch's ``weights_only``.

    Raises:
        CheckpointError: the file is missing, truncated or changed, or holds something else.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_checkpoint(Path(folder) / "checkpoint.pt", {"update": 7})
    ...     load_checkpoint(Path(folder) / "checkpoint.pt")
    {'update': 7}
    """
    try:
        _check(file)
        payload = read_bytes(file, start=_HEADER)
    except OSError as error:
        raise CheckpointError(f"{file}: not readable ({error.strerror})") from None
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # a file that somebody made to fit its checksum may hold anything
        raise CheckpointError(f"{file}: holds something else than a checkpoint's data ({error})") from None
    return content


def _check(file: Path) -> None:
    """Refuse what is no checkpoint before it takes any memory."""
    if not is_checkpoint(file):
        raise CheckpointError(f"{file}: not a checkpoint of isornn, or its beginning was changed")
    with file.open("rb") as opened:
        if opened.read(_HEADER) != _header(hashlib.file_digest(opened, "sha256").hexdigest()):
            raise CheckpointError(f"{file}: truncated or changed, its checksum does not fit; remove it to begin anew")


def _header(checksum: str) -> bytes:
    return _KIND + checksum.encode() + b"\n"
