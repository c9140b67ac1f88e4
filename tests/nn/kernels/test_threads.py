"""A loop on several threads: all of it is done, or its error arrives."""

from __future__ import annotations

import _thread

import pytest
import torch

from isornn.nn.kernels import threads


@pytest.mark.parametrize("count", [1, 4])
def test_every_part_is_done(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    found = torch.zeros(1000)

    def fill(array, start, stop) -> None:
        array[start:stop] += 1

    threads.shared(fill, found, over=1000, work=1e9)
    assert bool((found == 1).all())


@pytest.mark.parametrize("count", [1, 4])
def test_an_error_in_any_thread_arrives(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    calling, failed = _thread.get_ident(), []

    def fill(array, start, stop) -> None:
        elsewhere = _thread.get_ident() != calling
        if count == 1 or elsewhere:
            failed.append(start)
            raise MemoryError("no room")
        while not failed:  # the calling thread leaves a part to another
            pass

    with pytest.raises(MemoryError, match="no room"):
        threads.shared(fill, torch.zeros(8), over=8, work=1e9)
