"""Numbers as text: rounded to their standard error, infinite, or undefined."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isornn.theory import Quantity

_MOST = 8  # digits after the point: errors of rounding have no others
_EXACT = 1e-13  # of the value: an error that is rounding


def rounded(value: float, error: float = 0.0) -> str:
    """Four digits, or as many as the error makes sense of: its own first two.

    What is next to 1, as the growth per step of what hardly fades, is not rounded to 1: its distance has two digits.

    >>> rounded(1234.567), rounded(35.3754, 0.14), rounded(3.2e-9), rounded(1.234e-9, 1e-10)
    ('1235', '35.38', '3.2e-09', '1.23e-09')
    >>> rounded(0.9993), rounded(0.9999712), rounded(1.0), rounded(1.16169197, 1.4e-15)
    ('0.9993', '0.999971', '1', '1.162')
    """
    if is_rounding(error, value) or not value or not math.isfinite(error):
        if 1e-12 < abs(1 - value) < 1e-4:
            return f"{value:.{1 - math.floor(math.log10(abs(1 - value)))}f}"
        return f"{value:.4g}"
    if not 1e-4 < abs(value) < 1e6:
        digits = 1 + math.floor(math.log10(abs(value))) - math.floor(math.log10(error))
        return f"{value:.{min(_MOST, max(0, digits))}e}"
    return f"{value:.{min(_MOST, max(0, 1 - math.floor(math.log10(error))))}f}"


def is_rounding(error: float, value: float) -> bool:
    """Whether an error is 0, or rounding alone.

    >>> is_rounding(0.0, 2.0), is_rounding(1e-15, 2.0), is_rounding(1e-9, 2.0), is_rounding(0.0, 0.0)
    (True, True, False, True)
    """
    return error <= _EXACT * abs(value)


def with_error_of(value: float | None, error: float | None = None) -> str:
    """The value and its standard error, where it has one beyond rounding.

    >>> with_error_of(0.27571234, 0.0013), with_error_of(166.68), with_error_of(3.2e-9), with_error_of(None)
    ('0.2757 ± 0.0013', '166.7', '3.2e-09', '-')
    >>> with_error_of(1.25e-9, 1e-10), with_error_of(2.0, math.inf), with_error_of(0.999999, 2e-7)
    ('1.25e-09 ± 1e-10', '2 (error unknown)', '0.99999900 ± 2e-07')
    >>> with_error_of(291.93, 2.0), with_error_of(78324.2, 22752.0)
    ('291.9 ± 2.0', '78324 ± 22752')
    >>> with_error_of(0.25, 2.8e-16)
    '0.25'
    """
    if value is None:
        return "-"
    if error is None or is_rounding(error, value):
        return rounded(value)
    return f"{rounded(value, error)} {plus_minus(error)}"


def plus_minus(error: float) -> str:
    """A standard error on its own: its first two digits.

    >>> plus_minus(0.0301), plus_minus(3e-9), plus_minus(math.inf)
    ('± 0.030', '± 3e-09', '(error unknown)')
    """
    if not math.isfinite(error):
        return "(error unknown)"
    return f"± {rounded(error, error) if error >= 1e-4 else f'{error:.2g}'}"


def value_of(quantity: Quantity) -> str:
    """A quantity's value; infinite, or undefined.

    >>> import torch
    >>> from isornn.theory import Quantity
    >>> def of(value, error=0.0, **reasons):
    ...     return value_of(Quantity.of(torch.tensor(value), torch.tensor(error), reasons))
    >>> of(74.5134), of(0.27571, 0.0013), of(torch.inf, unending=True), of(1.0, unsettled=True)
    ('74.51', '0.2757', 'infinite', 'undefined')
    """
    value = quantity.number()
    if value is None:
        return "infinite" if bool(quantity.value.isinf()) else "undefined"
    return rounded(value, quantity.error() or 0.0)


def with_error(quantity: Quantity) -> str:
    """A quantity's value and standard error; infinite, or undefined.

    >>> import torch
    >>> from isornn.theory import Quantity
    >>> of = Quantity.of
    >>> with_error(of(torch.tensor(1.2345), torch.tensor(0.03))), with_error(of(torch.tensor(2.0)))
    ('1.235 ± 0.030', '2')
    """
    value = quantity.number()
    return value_of(quantity) if value is None else with_error_of(value, quantity.error())


def or_why(quantity: Quantity) -> str:
    """The value and its standard error, or the whole reason why there is none.

    >>> import torch
    >>> from isornn.theory import Quantity
    >>> or_why(Quantity.of(torch.tensor(0.98765), torch.tensor(0.012)))
    '0.988 ± 0.012'
    >>> or_why(Quantity.of(torch.tensor(torch.inf), reasons={"no decay": True}))
    'no decay'
    """
    return quantity.reason() or with_error(quantity)


def power_of_ten(exponent: float) -> str:
    """10 to that power, however small or large.

    >>> power_of_ten(-400.3), power_of_ten(-0.5), power_of_ten(math.nan), power_of_ten(-math.inf)
    ('5.0e-401', '0.316', '', '0')
    >>> power_of_ten(-3), power_of_ten(4), power_of_ten(4.9999)
    ('1.0e-3', '1.0e4', '1.0e5')
    """
    if math.isnan(exponent):
        return ""
    if math.isinf(exponent):
        return "0"
    if -3 < exponent < 4:
        return f"{10**exponent:.3g}"
    whole = math.floor(exponent)
    digits = f"{10 ** (exponent - whole):.1f}"
    return f"1.0e{whole + 1}" if digits == "10.0" else f"{digits}e{whole}"


def steps(number: float) -> str:
    """So many steps.

    >>> steps(1.0), steps(0.4), steps(999.6), steps(12345.6)
    ('1 step', '0.4 steps', '1,000 steps', '12,346 steps')
    """
    shown = f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"
    return f"{shown} step" + ("" if shown == "1" else "s")


def share(part: float | None) -> str:
    """A share as people read it.

    >>> share(0.3679), share(1e-7), share(0.0), share(0.99999), share(None)
    ('36.8 %', '1e-05 %', '0 %', '99.999 %', '-')
    """
    if part is None:
        return "-"
    return f"{100 * part:.3g} %" if part <= 0.999 else f"{100 * part:.6g} %"


def counted(number: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "sequence"), counted(2000, "step")
    ('1 sequence', '2,000 steps')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
