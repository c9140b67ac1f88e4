"""The page, served on the loopback address until it is interrupted."""

from __future__ import annotations

import logging
import os
import signal
import socket
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import waitress
from dash import Dash
from flask import abort, request

from isornn.cells import Spec, SpecError
from isornn.explorer.access import HOST, guard, new_token
from isornn.explorer.callbacks import connect
from isornn.explorer.latest import Latest
from isornn.explorer.layout import page

_THREADS = 16  # each waits for one answer


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_base(value: Any) -> bool:
    """Whether it has a spec, and the line that sets it or none."""
    return isinstance(value, dict) and _is_text(value.get("spec")) and isinstance(value.get("python"), str | None)


def _is_answer(value: Any) -> bool:
    """Whether it has a spec and its moments as `isornn.explorer.work.numbers` has them, or why there are none."""
    if not isinstance(value, dict) or not _is_text(value.get("spec")) or not _is_text(value.get("why")):
        return False
    moments = value.get("moments")
    if moments is None:
        return True
    if not isinstance(moments, list) or len(moments) != 3:
        return False
    second, correlation, error = moments
    return all(type(one) in (int, float) for one in (second, correlation, 0.0 if error is None else error))


# What the page sends of these, which its callbacks read without looking.
_SENT: dict[str, Callable[[Any], bool]] = {
    "moves": lambda value: isinstance(value, dict),
    "base": _is_base,
    "answer": _is_answer,
    "spec": lambda value: value is None or _is_text(value),
    "start": _is_text,
    "cell": _is_text,
    "tab": _is_text,
}


def explorer(spec: Spec, token: str, port: int, latest: Latest) -> Dash:
    """The application, opened at ``spec``, all of it behind ``/token/``."""
    app = Dash(
        "isornn.explorer",
        title="isornn explore",
        update_title="",
        url_base_pathname=f"/{token}/",
        serve_locally=True,
        suppress_callback_exceptions=True,
        add_log_handler=False,
        enable_mcp=False,
        meta_tags=[
            {"name": "viewport", "content": "width=device-width, initial-scale=1"},
            {"name": "color-scheme", "content": "light dark"},
        ],
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')  # for those who listen to the page
    app.layout = lambda: page(spec)
    connect(app, latest)
    guard(app.server, token, port, [*app.csp_hashes()])
    _refuse_other_bodies(app)
    return app


def _refuse_other_bodies(app: Dash) -> None:
    """Refuse, as a bad request, the body of a callback that the page does not send."""

    def refuse() -> None:
        if request.method == "POST" and not _is_of_the_page(app, request.get_json()):
            abort(400, "The page sends no such request.")

    app.server.before_request(refuse)


def _is_of_the_page(app: Dash, body: Any) -> bool:
    """Whether it names the output, inputs and states of one of the page's callbacks, with values of their kinds."""
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return False
    callback = app.callback_map.get(body["output"])
    if callback is None:
        return False
    for part, wanted in (("inputs", callback["inputs"]), ("state", callback["state"])):
        given = body.get(part, [])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            return False
        if [(one.get("id"), one.get("property")) for one in given] != [(one["id"], one["property"]) for one in wanted]:
            return False
        if not all(_SENT[one["id"]](one.get("value")) for one in given if one["id"] in _SENT):
            return False
    return True


def serve(spec: Spec, port: int | None, say: Callable[[str], None], browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Args:
        port: where; any free one if ``None``.
        say: called with the address, and at the end with a message that the server has stopped.
        browser: open the address in the user's.

    Raises:
        SpecError: the port is in use or not allowed.
    """
    with _listening(port) as listener, Latest([type(spec.cell).__module__]) as latest:
        found = listener.getsockname()[1]
        token = new_token()
        app = explorer(spec, token, found, latest)
        # A request that waits its turn is no news for the terminal.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        server = waitress.create_server(app.server, sockets=[listener], threads=_THREADS, ident=None)
        address = f"http://{HOST}:{found}/{token}/"
        say(f"exploring {spec.cell.name} at {address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)
        with _ended_by_signals(latest):
            server.run()
        server.close()
        say("the explorer has ended")


@contextmanager
def _ended_by_signals(latest: Latest) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block; running work is terminated first, since the server waits for its requests."""

    def end(*_: object) -> None:
        latest.close()
        raise KeyboardInterrupt

    before = {which: signal.signal(which, end) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _listening(port: int | None) -> socket.socket:
    """Bound before anything else, so that a port in use is an error at once."""
    try:
        return socket.create_server((HOST, port or 0))
    except OSError as error:
        raise SpecError("--port", port, f"nothing else may listen on it ({os.strerror(error.errno or 0)})") from None
