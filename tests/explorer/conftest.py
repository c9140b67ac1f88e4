"""The explorer as the shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest


@pytest.fixture
def served() -> Callable[..., AbstractContextManager[tuple[subprocess.Popen[str], str]]]:
    """Starts ``isornn explore`` with these arguments: a context with the process and the page's address."""

    @contextmanager
    def start(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        command = [sys.executable, "-m", "isornn", "explore", "--no-browser", *arguments]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=path) as server:
            assert server.stderr is not None
            try:
                first = server.stderr.readline()
                assert first.startswith("isornn: exploring") and " at http://127.0.0.1:" in first, first
                yield server, first.split(" at ")[1].split()[0]
            finally:
                server.kill()

    return start
