"""Run requests in separate processes and cancel a request when a later one of its kind arrives."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import signal
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_PRELOADED = ["isornn.explorer.preloaded"]
_REMEMBERED = 256  # answers


class Superseded(Exception):
    """A later request of the same kind was made, or the page is closing."""


class Failed(RuntimeError):
    """The work ended with an error that is no refusal; its traceback is on stderr."""


class Latest:
    """Runs functions of this library in separate processes, at most one for each ``place`` at a time.

    The theory's computations cannot be cancelled, so the process of a superseded request is terminated. Processes are
    forked from a server that has imported all they need, where the system supports this (else each imports it itself).
    The last ``remembered`` results are cached (least recently used).

    Args:
        modules: what a process imports first: the modules of the user's own cells, which a spec may name.
        remembered: how many results are cached.

    >>> with Latest() as latest:
    ...     latest.ask("page", round, 2.6)
    3
    """

    def __init__(self, modules: Sequence[str] = (), remembered: int = _REMEMBERED) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        self._modules = tuple(modules)
        self._running: dict[str, BaseProcess] = {}
        self._answers: OrderedDict[bytes, Any] = OrderedDict()
        self._remembered = remembered
        self._lock = threading.Lock()
        self._closed = False
        if "forkserver" in methods:
            self._context.set_forkserver_preload(_PRELOADED)
            forkserver.ensure_running()

    def __enter__(self) -> Latest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Terminate all work, and refuse more."""
        self._closed = True
        self.drop("")

    def ask(self, place: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """``work(*arguments)``; cancels a running request at the same place.

        Raises:
            Superseded: by a later request.
            Failed: an error in the work.
            ValueError: raised by the work itself.
        """
        key = pickle.dumps((work, arguments))
        with self._lock:
            self._end(place)
            if self._closed:
                raise Superseded
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            process, receiver = self._started(work, arguments)
            self._running[place] = process
        with receiver:
            try:
                outcome, answer = pickle.loads(receiver.recv_bytes())
            except (EOFError, OSError):
                outcome, answer = "silent", None
        process.join()
        with self._lock:
            if self._running.get(place) is not process:
                raise Superseded
            del self._running[place]
            if outcome == "answered":
                self._answers[key] = answer
                while len(self._answers) > self._remembered:
                    self._answers.popitem(last=False)
        if outcome == "answered":
            return answer
        if outcome == "refused":
            raise answer
        raise Failed(answer or f"{work.__name__}: its process ended without an answer")

    def knows(self, work: Callable[..., Any], *arguments: Any) -> bool:
        """Whether the answer is there already."""
        with self._lock:
            return pickle.dumps((work, arguments)) in self._answers

    def drop(self, prefix: str) -> None:
        """Cancel the work at all places with this prefix."""
        with self._lock:
            for place in [place for place in self._running if place.startswith(prefix)]:
                self._end(place)

    def _end(self, place: str) -> None:
        process = self._running.pop(place, None)
        if process is not None:
            process.terminate()

    def _started(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[BaseProcess, Connection]:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_answer, args=(sender, self._modules, work, arguments), daemon=True)
        process.start()
        sender.close()
        return process, receiver


def _answer(sender: Connection, modules: Sequence[str], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Runs in the process. Ctrl-C is handled by the server, which terminates this process."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # the theory's tensors are small
    try:
        for module in modules:
            importlib.import_module(module)
        outcome = ("answered", work(*arguments))
    except ValueError as refusal:
        ours = type(refusal).__module__.startswith("isornn.")
        outcome = ("refused", ValueError(str(refusal))) if ours else ("failed", traceback.format_exc())
    except Exception:
        outcome = ("failed", traceback.format_exc())
    if outcome[0] == "failed":
        print(outcome[1], file=sys.stderr)
        outcome = ("failed", "this could not be computed, by a fault of ours: the terminal has it")
    sender.send_bytes(pickle.dumps(outcome))
