"""Numbers and modules as sentences and remedies have them."""

from __future__ import annotations

import math

from isornn.theory import Quantity


def power(log: float) -> str:
    """``exp(log)`` to two digits, however small or large.

    >>> power(-0.5), power(-1000.0), power(-float("inf"))
    ('0.61', '5.1e-435', '0')
    """
    if math.isinf(log):
        return "0"
    exponent = math.floor(log / math.log(10))
    mantissa = math.exp(log - exponent * math.log(10))
    return f"{math.exp(log):.2g}" if abs(exponent) < 300 else f"{mantissa:.1f}e{exponent}"


def with_error(quantity: Quantity) -> str:
    """The number with its error, or why there is none.

    >>> from isornn.diagnosis.numbers import single
    >>> with_error(single(0.98765, 0.012)), with_error(single(float("inf"), reasons={"no decay": True}))
    ('0.988 ± 0.012', 'no decay')
    """
    number, error = quantity.number(), quantity.error()
    if number is None or error is None:
        return str(quantity.reason())
    if error == 0 or not math.isfinite(error):
        return f"{number:.4g}" + ("" if error == 0 else " (one block: error unknown)")
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{number:.{digits}f} ± {error:.{digits}f}" if digits < 7 else f"{number:.4g} ± {error:.2g}"


def expression(module: str) -> str:
    """Python that gives a module by its dotted name, from ``model``.

    >>> expression("encoder.rnn"), expression("1.rnn"), expression("")
    ('model.encoder.rnn', "model.get_submodule('1.rnn')", 'model')
    """
    if not module:
        return "model"
    plain = all(part.isidentifier() for part in module.split("."))
    return f"model.{module}" if plain else f"model.get_submodule({module!r})"
