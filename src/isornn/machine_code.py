"""Functions compiled by numba, with their machine code kept in files beside their source.

This module imports numba, which takes a second: only modules of compiled functions import it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])


class _Kept(FunctionCache):
    """Machine code in files; where these cannot be read, as after a full disk, they are left for fresh ones."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling raises
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError, EOFError, pickle.UnpicklingError):  # an index that can be neither read nor replaced
            super().save_overload(sig, data)


def in_machine_code(function: F, freedoms: Iterable[str] = ()) -> F:
    """The function compiled, without Python's lock.

    Args:
        freedoms: LLVM's, with which arithmetic may be changed: ``"contract"``, ``"reassoc"``.

    >>> in_machine_code(lambda x: x + 1)(2)
    3
    """
    machine = numba.njit(fastmath=set(freedoms), error_model="numpy", nogil=True)(function)
    with suppress(RuntimeError):  # no folder to keep machine code in: each process compiles its own
        cast(Any, machine)._cache = _Kept(machine.py_func)
    return cast(F, machine)
