"""``isornn explore``: what it refuses, and how it ends."""

from __future__ import annotations

import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isornn.cli import app

Served = Callable[..., Any]


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["explore", "--no-browser", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused("--port", port) == (
            f"isornn: --port: {port} is not allowed; nothing else may listen on it (Address already in use)\n"
        )


def test_bad_input_is_refused_by_name(tmp_path: Path) -> None:
    assert "from 1024 to 65535" in refused("--port", 80)
    assert "'many' is not a whole number" in refused("--port", "many")
    assert "'transformer' is not one of" in refused("--cell", "transformer")
    assert "--cell: 'lstm' is not allowed" in refused(tmp_path / "spec.json", "--cell", "lstm")
    assert "it must be a file that can be read" in refused(tmp_path / "missing.json")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("isornn.explorer.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dash", None)
    assert "pip install 'isornn[explore]'" in refused()


def test_ctrl_c_ends_it_with_a_word_and_strangers_see_nothing(served: Served) -> None:
    with served("--cell", "t_rnn") as (server, address):
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="403") as stranger:
            urllib.request.urlopen("/".join(address.split("/")[:3]) + "/_dash-layout")
        stranger.value.close()
        server.send_signal(signal.SIGINT)
        _, rest = server.communicate(timeout=60)  # a process that still loads torch has the same standard error
        assert server.returncode == 0 and rest == "isornn: the explorer has ended\n"
