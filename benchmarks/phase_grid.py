"""10,000 specs of Cho's GRU at once, against the same numbers by scipy's adaptive double integrals, spec by spec.

Bars: at most 3 s for the grid on 2 cores, and at least 100 times faster a spec.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch
from scipy.integrate import dblquad, quad
from table import heading, median_seconds, show

from isornn import Gate, Input, Spec, analyze
from isornn.cells import ChoGRU

TOLERANCE = 1e-6
Function = Callable[[float], float]


def grid(side: int, correlation: float) -> Spec:
    weight_var = torch.linspace(0.1, 9.0, side, dtype=torch.float64)[:, None]
    bias_mean = torch.linspace(0.0, 6.0, side, dtype=torch.float64)
    gates = {"z": Gate(weight_var, 1.0, bias_mean=bias_mean), "r": Gate(1.0, 1.0), "n": Gate(1.0, 1.0)}
    return Spec(ChoGRU(), gates, Input(1.0, correlation))


def sigma(u: float) -> float:
    return 1 / (1 + math.exp(-u)) if u > -700 else 0.0


def sigma_prime(u: float) -> float:
    return sigma(u) * sigma(-u)


def normal(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def single(f: Function, mean: float, var: float) -> float:
    """E f(u), u ~ N(mean, var), by scipy.integrate.quad."""
    std = math.sqrt(var)
    return float(quad(lambda z: f(mean + std * z) * normal(z), -9, 9, epsabs=TOLERANCE, epsrel=TOLERANCE)[0])


def double(f: Function, g: Function, mean: float, var: float, c: float) -> float:
    """E f(u_a) g(u_b) with correlation c, by scipy.integrate.dblquad."""
    std, rest = math.sqrt(var), math.sqrt(max(0.0, 1 - c * c))

    def integrand(y: float, x: float) -> float:
        return f(mean + std * x) * g(mean + std * (c * x + rest * y)) * normal(x) * normal(y)

    return float(dblquad(integrand, -9, 9, -9, 9, epsabs=TOLERANCE, epsrel=TOLERANCE)[0])


def by_dblquad(weight_var: float, bias_mean: float, correlation: float) -> tuple[float, float, float]:
    """Q*, C* and chi of the GRU with all integrals of pairs by dblquad; plain iteration as a script would do it."""
    q = 0.1
    for _ in range(500):
        var_z, var_g = weight_var * q + 1, q + 1
        var_n = single(lambda u: sigma(u) ** 2, 0, var_g) * q + 1
        z2 = single(lambda u: sigma(u) ** 2, bias_mean, var_z)
        rest = single(lambda u: sigma(-u) ** 2, bias_mean, var_z)
        new = rest * single(lambda u: math.tanh(u) ** 2, 0, var_n) / (1 - z2)
        q, change = new, abs(new - q)
        if change < TOLERANCE * q:
            break
    c = 0.5
    for _ in range(50):
        s = c * q
        kz = (weight_var * s + correlation) / var_z
        kr = (s + correlation) / var_g
        kn = (double(sigma, sigma, 0, var_g, kr) * s + correlation) / var_n
        zz = double(sigma, sigma, bias_mean, var_z, kz)
        oo = double(lambda u: sigma(-u), lambda u: sigma(-u), bias_mean, var_z, kz)
        nn = double(math.tanh, math.tanh, 0, var_n, kn)
        new = oo * nn / (1 - zz) / q
        c, change = new, abs(new - c)
        if change < TOLERANCE:
            break
    s = c * q
    slope_z = double(sigma_prime, sigma_prime, bias_mean, var_z, kz)
    slope_n = double(lambda u: 1 - math.tanh(u) ** 2, lambda u: 1 - math.tanh(u) ** 2, 0, var_n, kn)
    slope_r = double(sigma_prime, sigma_prime, 0, var_g, kr)
    gg = double(sigma, sigma, 0, var_g, kr)
    chi = zz + weight_var * slope_z * (s + nn) + oo * slope_n * (gg + slope_r * s)
    return q, c, chi


def main() -> int:
    heading("Phase grid of gru_cho: fixed point, C*, chi, xi, chi_1, m1, m2, xi_Q")
    side, rows = 100, []
    analyze(grid(2, 1.0), length=1)  # what torch loads on first use
    seconds = {}
    for correlation in (1.0, 0.5):
        spec = grid(side, correlation)
        seconds[correlation] = median_seconds(lambda spec=spec: analyze(spec, length=1), runs=3)
        rows.append([f"{side * side} specs, input correlation {correlation}", seconds[correlation]])
    answer = analyze(grid(side, 0.5), length=1)
    slow, worst = [], 0.0
    for i, j in ((10, 30), (60, 10)):
        weight_var, bias_mean = 0.1 + 8.9 * i / 99, 6.0 * j / 99
        found: list[tuple[float, float, float]] = []
        slow.append(median_seconds(lambda w=weight_var, b=bias_mean, f=found: f.append(by_dblquad(w, b, 0.5)), runs=1))
        values = (answer.fixed_point.second_moment, answer.fixed_point.correlation, answer.chi)
        ours = [float(quantity.value[i, j]) for quantity in values]
        worst = max(worst, *(abs(a / b - 1) for a, b in zip(ours, found[0], strict=True)))
        rows.append([f"dblquad, spec ({i}, {j})", slow[-1]])
    show(("what", "seconds"), rows)
    ratio = min(slow) / (seconds[0.5] / side**2)
    print(f"ratio per spec, dblquad over ours: {ratio:.0f} (bar: 100); largest relative difference {worst:.1e}")
    print(f"grid at the default input correlation: {seconds[1.0]:.2f} s (bar: 3)")
    return 0 if ratio >= 100 and seconds[1.0] <= 3 and worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
