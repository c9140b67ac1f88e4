"""Access control of the page: only requests to this machine that have the token.

Every address of the page and of its callbacks begins with the token. The Host header must name the loopback address, so
that no other site can reach the page by letting its own name point here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets

from flask import Flask, Response, abort, request

HOST = "127.0.0.1"
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """A token that cannot be guessed: 192 random bits."""
    return secrets.token_urlsafe(24)


def guard(server: Flask, token: str, port: int, scripts: list[str]) -> None:
    """Refuse every request without the token or with another Host header, before it is processed.

    Args:
        scripts: hashes of the inline scripts that the page may run; it may load nothing from elsewhere.
    """
    hosts = {f"{HOST}:{port}", f"localhost:{port}"}
    policy = (
        f"default-src 'self'; script-src 'self' {' '.join(scripts)}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )

    @server.before_request
    def refuse() -> None:
        first = request.path.split("/")[1]
        if request.headers.get("Host") not in hosts or not hmac.compare_digest(first.encode(), token.encode()):
            abort(403, "This page is for the one who started it: open the address that isornn explore printed.")

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers.update(_HEADERS)
        response.headers["Content-Security-Policy"] = policy
        return response
