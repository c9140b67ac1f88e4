"""Requests that do not know the token, or come under another name, see nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from isornn.cells import cell_named
from isornn.explorer.access import new_token
from isornn.explorer.controls import opening
from isornn.explorer.latest import Latest
from isornn.explorer.server import explorer

TOKEN, PORT = new_token(), 8123
HOST = f"127.0.0.1:{PORT}"
CALLBACK = "/_dash-update-component"
PATHS = ("/", "/_dash-layout", "/_dash-dependencies", "/assets/explorer.css", "/_favicon.ico")


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with Latest() as latest:
        yield explorer(opening(cell_named("minimal")), TOKEN, PORT, latest).server.test_client()


def status(client: FlaskClient, path: str, host: str = HOST) -> int:
    with client.get(path, headers={"Host": host}) as answer:
        return answer.status_code


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_everything_is_refused(client: FlaskClient, path: str) -> None:
    assert status(client, f"/{TOKEN}{path}") == 200
    for wrong in ("", f"/{TOKEN[:-1]}", f"/{TOKEN}x", f"/{new_token()}", "/é"):
        assert status(client, f"{wrong}{path}") == 403
    assert status(client, f"{path}?token={TOKEN}") == 403


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"[::1]:{PORT}", ""]
)
def test_under_another_name_everything_is_refused(client: FlaskClient, host: str) -> None:
    for path in PATHS:
        assert status(client, f"/{TOKEN}{path}", host) == 403
    assert status(client, f"/{TOKEN}/", f"localhost:{PORT}") == 200


def test_callbacks_are_refused_too(client: FlaskClient) -> None:
    body = {"output": "headline.children", "outputs": [], "inputs": [], "changedPropIds": []}
    assert client.post(CALLBACK, json=body, headers={"Host": HOST}).status_code == 403
    assert client.post(f"/{TOKEN}{CALLBACK}", json=body, headers={"Host": "evil.example"}).status_code == 403
    assert client.post(f"/{new_token()}{CALLBACK}", json=body, headers={"Host": HOST}).status_code == 403


NUMBERS = (
    "..answer.data...headline.children...numbers.children...fading-figure.figure...fading-caption.children..."
    "time_scales-figure.figure...time_scales-caption.children.."
)
SPEC = "..spec.data...python.children...refusal.children.."
COBWEB = "..cobweb-figure.figure...cobweb-caption.children.."


def body(output: str, values: dict[str, Any], **others: Any) -> dict[str, Any]:
    """What the page sends for the callback of these outputs; inputs by id and property."""

    def listed(given: dict[str, Any]) -> list[dict[str, Any]]:
        parts = [(*name.split("."), value) for name, value in given.items()]
        return [{"id": part, "property": of, "value": value} for part, of, value in parts]

    parts = [name.rsplit(".", 1) for name in output.strip(".").split("...")]
    outputs = [{"id": part, "property": of} for part, of in parts]
    about = {"output": output, "outputs": outputs, "changedPropIds": [next(iter(values))]}
    return about | {"inputs": listed(values), "state": listed({"tab.data": "a"})} | others


def posted(client: FlaskClient, content: Any) -> tuple[int, str]:
    answer = client.post(f"/{TOKEN}{CALLBACK}", json=content, headers={"Host": HOST})
    return answer.status_code, answer.text


@pytest.mark.parametrize(
    "content",
    [
        [],
        3,
        {},
        {"output": "headline.children", "outputs": [], "inputs": [], "changedPropIds": []},
        {"output": ["answer.data"]},
        body(COBWEB, {"answer.data": None}),
        body(COBWEB, {"answer.figure": {}}),
        body(COBWEB, {"answer.data": {}}, inputs=3),
        body(COBWEB, {"answer.data": {}}, state=[3]),
        body(COBWEB, {"answer.data": {}}),
        body(COBWEB, {"answer.data": {"spec": 3, "moments": None, "why": ""}}),
        body(COBWEB, {"answer.data": {"spec": "{}", "moments": [1.0], "why": ""}}),
        body(COBWEB, {"answer.data": {"spec": "{}", "moments": [1.0, "0", None], "why": ""}}),
        body(NUMBERS, {"spec.data": {"cell": "lstm"}, "length.value": 10}),
        body(SPEC, {"moves.data": {}}, state=[{"id": "base", "property": "data", "value": {"python": None}}]),
    ],
)
def test_bodies_that_the_page_does_not_send_are_bad_requests(client: FlaskClient, content: Any) -> None:
    status, text = posted(client, content)
    assert status == 400 and "The page sends no such request." in text


@pytest.mark.parametrize("length", [10.5, "10", True, [1], {}])
def test_a_length_that_is_none_is_refused_on_the_page(client: FlaskClient, length: Any) -> None:
    status, text = posted(client, body(NUMBERS, {"spec.data": "{}", "length.value": length}))
    assert status == 200 and ": give a whole number of at least 2, at most 1,000,000" in text


@pytest.mark.parametrize("text", ["{bad", "", "[" * 100_000, "3"])
def test_a_spec_that_is_none_is_refused_on_the_page(client: FlaskClient, text: str) -> None:
    status, said = posted(client, body(NUMBERS, {"spec.data": text, "length.value": 10}))
    assert status == 200 and "spec: " in said and "is not allowed" in said
    base = {"id": "base", "property": "data", "value": {"spec": text, "python": None}}
    status, said = posted(client, body(SPEC, {"moves.data": {}}, state=[base]))
    assert status == 200 and "spec: " in said and "is not allowed" in said


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100 and min(map(len, tokens)) >= 32


def test_the_page_may_load_nothing_from_elsewhere(client: FlaskClient) -> None:
    answer = client.get(f"/{TOKEN}/", headers={"Host": HOST})
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'; script-src 'self' 'sha256-") and "unsafe-eval" not in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer" and "https://" not in answer.text


def test_the_page_names_its_language_and_its_controls(client: FlaskClient) -> None:
    assert '<html lang="en">' in client.get(f"/{TOKEN}/", headers={"Host": HOST}).text
    layout = client.get(f"/{TOKEN}/_dash-layout", headers={"Host": HOST}).text
    assert layout.count('"type":"Dropdown"') == layout.count('"role":"group"') > 4
    for label in ("cell", "start", "gate", "biases", "recurrent matrices"):
        assert f'"aria-label":"{label}"' in layout
