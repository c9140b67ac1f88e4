"""Only the latest question counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from isornn.cells import cell_named
from isornn.explorer import work
from isornn.explorer.latest import Failed, Latest, Superseded


@pytest.fixture(scope="module")
def latest() -> Iterator[Latest]:
    with Latest(remembered=2) as found:
        yield found


def asked(latest: Latest, place: str, outcome: list[object]) -> threading.Thread:
    """A question that takes a minute, asked by another thread."""

    def ask() -> None:
        try:
            outcome.append(latest.ask(place, time.sleep, 60))
        except Superseded:
            outcome.append("superseded")

    thread = threading.Thread(target=ask)
    thread.start()
    while place not in latest._running:
        time.sleep(0.01)
    return thread


def test_a_later_question_ends_the_one_before_and_no_other(latest: Latest) -> None:
    first: list[object] = []
    other: list[object] = []
    threads = [asked(latest, "a numbers", first), asked(latest, "b numbers", other)]
    process = latest._running["a numbers"]
    began = time.monotonic()
    assert latest.ask("a numbers", round, 2.6) == 3
    threads[0].join(10)
    assert first == ["superseded"] and time.monotonic() - began < 30 and not process.is_alive()
    assert other == [] and threads[1].is_alive()
    latest.drop("b")
    threads[1].join(10)
    assert other == ["superseded"] and not latest._running


def test_answers_are_remembered_up_to_a_bound(latest: Latest) -> None:
    first = latest.ask("c", time.time_ns)
    assert latest.ask("c", time.time_ns) == first and latest.knows(time.time_ns)
    for number in (1.4, 2.4):
        latest.ask("c", round, number)
    assert not latest.knows(time.time_ns) and latest.ask("c", time.time_ns) != first


def test_a_refusal_keeps_its_words_and_a_fault_is_none(latest: Latest) -> None:
    with pytest.raises(ValueError, match=r"weight_var: -1.0 is not allowed"):
        latest.ask("d", work.from_text, '{"cell": "minimal", "gates": {"u": {"weight_var": -1.0}}}')
    with pytest.raises(Failed, match="by a fault of ours"):
        latest.ask("d", work.from_text, 3)
    assert latest.ask("d", work.from_text, '{"cell": "minimal"}').cell == cell_named("minimal")
