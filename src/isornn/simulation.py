"""Random networks of finite width, tied and untied, to check the theory.

Nothing here uses the theory: matrices are drawn, networks are run, and moments are taken over their units.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isornn.cells import Input, Spec
from isornn.cells.arguments import check_generator, check_variance, correlations_by_step, whole_number
from isornn.cells.spec import check_spec
from isornn.modes import usual_modes
from isornn.nn import draws
from isornn.nn.random_network import RandomNetwork, State

_FORWARD_MODE = threading.Lock()


@dataclass(frozen=True)
class Estimate:
    """A mean over networks and its standard error: infinite for a single network, whose spread is unknown."""

    value: Tensor
    stderr: Tensor

    @staticmethod
    def over_networks(samples: Sequence[Tensor]) -> Estimate:
        """From one tensor a network."""
        stacked = torch.stack(list(samples))
        unknown = torch.full_like(stacked[0], torch.inf)
        error = stacked.std(0) / math.sqrt(len(stacked)) if len(stacked) > 1 else unknown
        return Estimate(stacked.mean(0), error)


@dataclass(frozen=True)
class Spectrum:
    """Moments of the squared singular values of the state-to-state Jacobian: ``mean`` is m1, ``second_moment`` m2,
    ``variance`` m2 - m1^2; ``singular_values`` (networks, states * width) are not squared, largest first."""

    mean: Estimate
    second_moment: Estimate
    variance: Estimate
    singular_values: Tensor


@dataclass(frozen=True)
class Simulation:
    """What `simulate` measured, each with its standard error over networks.

    Attributes:
        mean, second_moment: ``mu = E[h]``, ``Q = E[h^2]`` over the units of the first state, both copies, (steps,).
        correlation: ``C = (E[h_a h_b] - mu^2)/(Q - mu^2)``, (steps,).
        correlation_defined: where the units of every network vary; elsewhere C is 0/0 and reported as 1. (steps,).
        response: ``E|dh_t|^2 / E|dh_0|^2`` of tangents along copy a, t = 0..steps, (steps + 1,).
        chi_1: growth of ``E|dh|^2`` a step, the geometric mean over the second half of the steps: the rate at which
            two nearly identical copies converge or diverge (chi at C = 1).
        spectrum: of the Jacobian of the last step, along copy a; ``None`` unless asked for.
    """

    mean: Estimate
    second_moment: Estimate
    correlation: Estimate
    correlation_defined: Tensor
    response: Estimate
    chi_1: Estimate
    spectrum: Spectrum | None


@usual_modes()
def simulate(
    spec: Spec,
    *,
    width: int = 1000,
    steps: int = 50,
    networks: int = 4,
    tied: bool = False,
    input_correlation: float | Tensor | None = None,
    input_size: int | None = None,
    initial_variance: float | None = None,
    warmup: int = 0,
    tangents: int = 8,
    singular_values: bool = False,
    generator: torch.Generator | None = None,
) -> Simulation:
    """Draw networks by ``spec``, run two input sequences a and b through each, and measure.

    ``u_k = W_k r + U_k x_t + V_k x_(t-1) + b_k`` with ``W_ij ~ N(0, weight_var/N)`` (or the gate's ensemble times
    sqrt(weight_var)), ``U_ij ~ N(0, input_var/D)``, ``V_ij ~ N(0, previous_input_var/D)``, and biases as `Gate`
    says. Inputs are Gaussian, by the law that `Input` says, from one step before the first on; the features' means are
    Gaussian too, scaled to the root mean square ``mean``. Everything is float64, on the generator's device.

    Args:
        spec: cell and hyper-parameters; plain numbers, not a batch.
        width: N.
        steps: how many are measured.
        networks: how many are drawn, one after the other; the standard errors are over them.
        tied: one draw of weights and biases for all steps. Else weights are drawn afresh each step, and biases where
            ``spec.biases`` is ``"redrawn"``; with fixed biases the input matrices are kept too where inputs have a
            mean or are correlated over time.
        input_correlation: a number, or one for each measured step, (steps,); the spec's where not given.
        input_size: D; the width where not given.
        initial_variance: the states start at N(0, initial_variance), independent in the copies and the states; 0 for
            both copies where not given.
        warmup: steps before measuring begins (first input correlation), so that the response can be that of
            a change made at the fixed point.
        tangents: how many independent directions dh_0 ~ N(0, 1), in every state, the response is averaged over.
        singular_values: whether to decompose the dense Jacobian of the last step, from all states to all states.
        generator: makes the result reproducible; torch's default generator where not given.

    Raises:
        ValueError: a batch of specs, a size below 1, a correlation outside [-1, 1] or of another length than
            ``steps``, a variance that is negative or infinite, an input_size that is not the width where the input
            enters pointwise.

    Source: the setting of Gilboa et al. 2019, section 2 (untied) and appendix D.1 (tied too).

    >>> from isornn.cells import Gate, Vanilla
    >>> spec = Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=0.1)})
    >>> found = simulate(spec, width=200, steps=10, networks=2, generator=torch.Generator().manual_seed(0))
    >>> found.second_moment.value.shape, round(found.chi_1.value.item(), 1)
    (torch.Size([10]), 0.4)
    """
    check_spec(spec)
    inputs = width if input_size is None else input_size
    sizes = {"width": width, "input_size": inputs, "steps": steps, "networks": networks, "tangents": tangents}
    for name, size in sizes.items():
        whole_number(name, size)
    whole_number("warmup", warmup, 0)
    check_generator(generator)
    if initial_variance is not None:
        check_variance("initial_variance", initial_variance)
    if spec.batch_shape:
        raise ValueError(f"spec: a batch of shape {tuple(spec.batch_shape)} is not allowed; simulate one at a time")
    if spec.cell.input_enters_pointwise and inputs != width:
        raise ValueError(f"input_size: {inputs} is not allowed; for {spec.cell.name} it is the width, {width}")
    given = spec.input.correlation if input_correlation is None else input_correlation
    correlations = correlations_by_step(given, steps).tolist()
    correlations = [correlations[0]] * warmup + correlations
    run = _Run(spec, width, inputs, tied, initial_variance, warmup, tangents, singular_values, generator)
    with torch.no_grad():
        traces = [run.network(correlations) for _ in range(networks)]
    return _summary(traces)


@dataclass
class _Trace:
    """One network's measurements, a list entry a step."""

    mean: list[Tensor] = field(default_factory=list)
    second_moment: list[Tensor] = field(default_factory=list)
    correlation: list[Tensor] = field(default_factory=list)
    correlation_defined: list[Tensor] = field(default_factory=list)
    log_response: list[Tensor] = field(default_factory=list)
    singular_values: Tensor | None = None

    def record(self, a: Tensor, b: Tensor) -> None:
        both = torch.stack([a, b])
        mean, second = both.mean(), both.square().mean()
        variance = (both - mean).square().mean()
        covariance = ((a - mean) * (b - mean)).mean()
        # below this the units differ by rounding only
        varies = variance > 1e-24 * second
        self.mean.append(mean)
        self.second_moment.append(second)
        self.correlation_defined.append(varies)
        self.correlation.append(torch.where(varies, covariance / torch.where(varies, variance, 1.0), 1.0))


@dataclass(frozen=True)
class _Run:
    """What is the same for all networks of one simulation."""

    spec: Spec
    width: int
    input_size: int
    tied: bool
    initial_variance: float | None
    warmup: int
    tangents: int
    singular_values: bool
    generator: torch.Generator | None

    def network(self, correlations: list[float]) -> _Trace:
        trace, network = _Trace(), RandomNetwork.drawn(self.spec, self.width, self.input_size, self.generator)
        inputs = InputSequences(self.spec.input, self.input_size, self.generator)
        a, b = self._initial(), self._initial()
        tangent, log_scale = self._tangents(), torch.zeros((), dtype=torch.float64)
        before = inputs.drawn(correlations[0])
        for t, correlation in enumerate(correlations):
            if t > 0 and not self.tied:
                network = network.redrawn(self.generator)
                if self.spec.biases == "redrawn":
                    inputs.redraw_means()
            x = inputs.drawn(correlation)
            along_a, along_b = (network.advance(x[copy], before[copy]) for copy in (0, 1))
            if self.singular_values and t == len(correlations) - 1:
                trace.singular_values = jacobian_singular_values(along_a, a)
            # identical copies stay so by definition; run twice, rounding could part them where chi > 1
            together = torch.equal(x[0], x[1]) and torch.equal(before[0], before[1]) and _same(a, b)
            if t >= self.warmup:
                if t == self.warmup:
                    trace.log_response.append(_mean_square(tangent[0]).log())
                a, tangent = _push(along_a, a, tangent)
                trace.log_response.append(2 * log_scale + _mean_square(tangent[0]).log())
                tangent, log_scale = _rescaled(tangent, log_scale)
            else:
                a = along_a(*a)
            b = a if together else along_b(*b)
            if t >= self.warmup:
                trace.record(a[0], b[0])
            before = x
        return trace

    def _normal(self, *shape: int) -> Tensor:
        return draws.normal(shape, self.generator)

    def _initial(self) -> State:
        scale = math.sqrt(self.initial_variance or 0.0)
        return tuple(scale * self._normal(self.width) for _ in self.spec.cell.states)

    def _tangents(self) -> State:
        return tuple(self._normal(self.tangents, self.width) for _ in self.spec.cell.states)


class InputSequences:
    """Two sequences of D features; means are redrawn with the matrices that read them."""

    def __init__(self, law: Input, size: int, generator: torch.Generator | None) -> None:
        self._law, self._size, self._generator = law, size, generator
        self._deviation: Tensor | None = None
        self._means: Tensor | float = 0.0
        self.redraw_means()

    def redraw_means(self) -> None:
        if not self._law.is_centred:
            normal = draws.normal((self._size,), self._generator)
            self._means = float(self._law.mean) * normal / normal.square().mean().sqrt()

    def drawn(self, correlation: float) -> Tensor:
        """The next step's, (2, D)."""
        a, fresh = draws.normal((2, self._size), self._generator)
        b = correlation * a + math.sqrt(1 - correlation**2) * fresh
        new, kept = torch.stack([a, b]), float(self._law.autocorrelation)
        if kept and self._deviation is not None:
            new = kept * self._deviation + math.sqrt(1 - kept**2) * new
        self._deviation = new
        return self._means + math.sqrt(float(self._law.variance)) * new


def _same(a: State, b: State) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def _push(advance: Callable[..., State], states: State, tangent: State) -> tuple[State, State]:
    """The new states, and the tangents (tangents, N) pushed along.

    ``J t`` is the gradient of ``u . J t`` by u. By forward mode, of which torch has one level for all threads, only
    where the update has an operation without second derivatives, as hardsigmoid.
    """
    new, pull, *_ = torch.func.vjp(advance, *states)
    try:
        _, push, *_ = torch.func.vjp(lambda *u: pull(u), *map(torch.zeros_like, new))
        return new, torch.vmap(lambda *directions: push(directions))(*tangent)
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
    with _FORWARD_MODE:
        return new, torch.vmap(lambda *directions: torch.func.jvp(advance, states, directions)[1])(*tangent)


def _mean_square(tangent: Tensor) -> Tensor:
    return tangent.square().mean()


def _rescaled(tangent: State, log_scale: Tensor) -> tuple[State, Tensor]:
    """All tangents by one factor, which keeps their ratios: an average over them is over whole histories."""
    scale = torch.stack([_mean_square(part) for part in tangent]).mean().sqrt()
    if not bool(scale > 0):
        return tangent, log_scale
    return tuple(part / scale for part in tangent), log_scale + scale.log()


def jacobian_singular_values(advance: Callable[..., State], states: State) -> Tensor:
    """Singular values of ``d new / d old``, all states (N,) stacked: a dense (states * N)^2 matrix.

    >>> x = torch.zeros(2, dtype=torch.float64)
    >>> jacobian_singular_values(lambda h, c: (3 * c, h), (x, x))
    tensor([3., 3., 1., 1.], dtype=torch.float64)
    """
    size = len(states[0])

    def flat(joined: Tensor) -> Tensor:
        return torch.cat(advance(*joined.split(size)))

    return torch.linalg.svdvals(torch.func.jacrev(flat)(torch.cat(states)))


def _summary(traces: list[_Trace]) -> Simulation:
    def over(name: str) -> Estimate:
        return Estimate.over_networks([torch.stack(getattr(trace, name)) for trace in traces])

    logs = [torch.stack(trace.log_response) for trace in traces]
    return Simulation(
        mean=over("mean"),
        second_moment=over("second_moment"),
        correlation=over("correlation"),
        correlation_defined=torch.stack([torch.stack(trace.correlation_defined) for trace in traces]).all(0),
        response=Estimate.over_networks([(log - log[0]).exp() for log in logs]),
        chi_1=Estimate.over_networks([_growth(log) for log in logs]),
        spectrum=_spectrum([t.singular_values for t in traces if t.singular_values is not None]),
    )


def _growth(log_response: Tensor) -> Tensor:
    last = len(log_response) - 1
    half = last // 2
    if log_response[last] == -torch.inf:  # nothing is carried on
        return torch.zeros_like(log_response[last])
    return ((log_response[last] - log_response[half]) / (last - half)).exp()


def _spectrum(singular_values: list[Tensor]) -> Spectrum | None:
    if not singular_values:
        return None
    squared = [s.square() for s in singular_values]
    return Spectrum(
        mean=Estimate.over_networks([s.mean() for s in squared]),
        second_moment=Estimate.over_networks([s.square().mean() for s in squared]),
        variance=Estimate.over_networks([s.square().mean() - s.mean().square() for s in squared]),
        singular_values=torch.stack(singular_values),
    )
