"""Sampled units of an infinitely wide network: their laws, their random numbers and one step in time.

Layout of every tensor of units: ``(copies, G, R, n)``, with G the flattened batch of specs, R independent
replicates (for standard errors) and n units each; a quantity without copies is ``(G, R, n)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from isornn.cells import BiasLaw, Cell, Spec, Values, initial_parameters
from isornn.cells.laws import Ensemble
from isornn.cells.openings import bias_of
from isornn.cells.trace import graph_of
from isornn.theory.assumptions import check_assumptions
from isornn.theory.inputs import centred
from isornn.theory.population.drawn_parameters import has_spread_bias, with_drawn_parameters

# States beyond this have grown without bound; its fourth power is still a finite float64.
HUGE = 1e60
# Half-width, in standard deviations, of the proposal that reaches the rare slow units of fixed biases.
WIDE = 6.5


@dataclass(frozen=True)
class Laws:
    """A spec with its batch flattened: every number is a float64 tensor ``(G, 1, 1)``, by gate.

    ``drive`` is the input's part of the variance, ``(input_var + previous_input_var) R``; ``fixed`` says that
    units keep biases of their own (fixed biases that are all equal are no different from redrawn ones);
    ``remembered`` names the gates whose input is correlated over time, ``""`` the input that is read pointwise.
    """

    cell: Cell
    weight: Mapping[str, Tensor]
    ensemble: Mapping[str, Ensemble]
    drive: Mapping[str, Tensor]
    bias_mean: Mapping[str, Tensor]
    bias_var: Mapping[str, Tensor]
    bias_law: Mapping[str, BiasLaw | None]
    input_variance: Tensor
    input_correlation: Tensor
    autocorrelation: Tensor
    remembered: tuple[str, ...]
    fixed: bool

    @staticmethod
    def of(spec: Spec) -> Laws:
        """Flatten the batch of ``spec``.

        Raises:
            TheoryMissing: the cell's update is not pointwise, identity matrices, or only some numbers of a unit are
                drawn once.
        """
        check_assumptions(spec)

        def flat(number: float | Tensor) -> Tensor:
            value = torch.as_tensor(number, dtype=torch.float64).detach()
            return value.expand(spec.batch_shape).reshape(-1, 1, 1)

        spec = with_drawn_parameters(centred(spec))
        variance = flat(spec.input.variance)
        gates = spec.gates.items()
        drive = {name: (flat(gate.input_var) + flat(gate.previous_input_var)) * variance for name, gate in gates}
        received = sum(drive.values()) + variance * spec.cell.input_enters_pointwise
        return Laws(
            cell=spec.cell,
            weight={name: flat(gate.recurrent_var) for name, gate in gates},
            ensemble={name: gate.ensemble for name, gate in gates},
            drive=drive,
            bias_mean={name: flat(gate.bias_mean) for name, gate in gates},
            bias_var={name: flat(gate.bias_var) for name, gate in gates},
            bias_law={name: gate.bias_law for name, gate in gates},
            input_variance=variance,
            # two copies have the same input where nothing reads it
            input_correlation=torch.where(received > 0, flat(spec.input.correlation), 1.0),
            autocorrelation=flat(spec.input.autocorrelation),
            remembered=_remembered(spec, drive),
            fixed=spec.biases == "fixed" and any(map(has_spread_bias, spec.gates.values())),
        )

    @property
    def batch(self) -> int:
        """G, the number of specs."""
        return self.input_variance.shape[0]

    @property
    def weighted(self) -> list[str]:
        """Gates with a recurrent matrix that is not zero throughout the batch."""
        return [name for name, value in self.weight.items() if bool((value > 0).any())]

    @property
    def gated(self) -> list[str]:
        """Weighted gates whose matrix reads anything but the first state itself."""
        return [gate for gate in self.weighted if self.read_name(gate)]

    def read_name(self, gate: str) -> str:
        """The name under which ``Field`` keeps what ``gate`` reads: all plain reads share one."""
        return "" if gate in graph_of(self.cell).plain_reads else gate

    def input_variance_of(self, gate: str) -> Tensor:
        """Of a gate's input, or with ``""`` of the input that is read pointwise."""
        return self.drive[gate] if gate else self.input_variance

    def spread(self, gate: str, field: Field) -> Tensor:
        """Standard deviation over time of the gate's pre-activation, given the unit's bias where it is fixed."""
        variance = self.drive[gate] + (0.0 if self.fixed else self.bias_var[gate])
        if gate in self.weighted:
            known = field.values.get(gate, field.values.get(""))
            variance = variance + (0.0 if known is None else self.weight[gate] * known[0])
        return variance.sqrt()


def _remembered(spec: Spec, drive: Mapping[str, Tensor]) -> tuple[str, ...]:
    if not spec.input.remembers:
        return ()
    driven = [gate for gate, variance in drive.items() if bool((variance > 0).any())]
    return (*driven, "") if spec.cell.input_enters_pointwise else tuple(driven)


@dataclass(frozen=True)
class Units:
    """A population: states by name ``(copies, G, R, n)``, each unit's fixed bias by gate and its weight ``(G, R, n)``.

    Weights have mean 1 within a replicate; ``None`` stands for all equal. Expectations are weighted means over n.
    ``inputs`` are those of the coming step that are correlated with what the unit has received before, by gate as
    ``Laws.remembered`` names them, in standard deviations, ``(copies, G, R, n)``.
    """

    states: Mapping[str, Tensor]
    offsets: Mapping[str, Tensor]
    weights: Tensor | None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        return next(iter(self.states.values())).shape[0]

    def one_copy(self) -> Units:
        """The first copy of each unit alone."""
        states, inputs = ({name: v[:1] for name, v in values.items()} for values in (self.states, self.inputs))
        return replace(self, states=states, inputs=inputs)

    def with_identical(self, mask: Tensor, one: Units) -> Units:
        """This population with both copies taken from the one-copy population ``one`` at the specs of ``mask`` (G,)."""
        chosen = mask[:, None, None]
        weights = self.weights
        if weights is not None and one.weights is not None:
            weights = torch.where(chosen, one.weights, weights)
        return Units(
            {name: torch.where(chosen, one.states[name], value) for name, value in self.states.items()},
            {name: torch.where(chosen, one.offsets[name], value) for name, value in self.offsets.items()},
            weights,
            {name: torch.where(chosen, one.inputs[name], value) for name, value in self.inputs.items()},
        )

    def mean(self, value: Tensor) -> Tensor:
        """Expectation over units, ``(..., n)`` to ``(..., 1)``."""
        if self.weights is not None:
            value = value * self.weights
        return value.mean(-1, keepdim=True)

    def moments(self, state: str) -> Tensor:
        """Means over units of a state s, of s^2 and of s_a s_b, ``(G, R, 3)``."""
        s = self.states[state]
        own = s.square().mean(0)
        pair = own if len(s) == 1 else s[0] * s[1]
        return torch.cat([self.mean(value) for value in (s.mean(0), own, pair)], -1)

    def taken(self, order: Tensor) -> Units:
        """The units ``order`` ``(G, R, m)`` of each replicate, in that order."""

        def pick(value: Tensor) -> Tensor:
            return value.gather(-1, order.expand(*value.shape[:-1], order.shape[-1]))

        return Units(
            states={name: pick(value) for name, value in self.states.items()},
            offsets={name: pick(value) for name, value in self.offsets.items()},
            weights=None if self.weights is None else pick(self.weights),
            inputs={name: pick(value) for name, value in self.inputs.items()},
        )


class Draws:
    """Uniform variates for R x n units, evenly spread within each replicate.

    A Sobol set with a fresh random shift at each call (Cranley & Patterson 1976): each unit's variates have
    exactly their law and are independent of all earlier calls; only within a call do units share the
    randomness, which lowers the noise of means over units. Units must be put in a fresh order between calls
    (``order``), or two units that lie close in the set would stay close for ever.
    """

    def __init__(self, batch: int, replicates: int, units: int, generator: torch.Generator) -> None:
        self.shape = (batch, replicates, units)
        self.generator = generator
        self._points: dict[int, Tensor] = {}

    def uniform(self, count: int) -> Tensor:
        """``(count, G, R, n)`` on (0, 1)."""
        batch, replicates, units = self.shape
        if count not in self._points:
            points = SobolEngine(max(count, 1)).draw(units, dtype=torch.float64).T[:count]
            self._points[count] = points.reshape(count, 1, 1, units)
        shift = torch.rand(count, batch, replicates, 1, dtype=torch.float64, generator=self.generator)
        return ((self._points[count] + shift) % 1.0).clamp(1e-15, 1 - 1e-15)

    def order(self, key: Tensor | None) -> Tensor:
        """A fresh order of units ``(G, R, n)``: by ``key`` where there is one, else at random."""
        if key is None:
            key = torch.rand(self.shape, dtype=torch.float64, generator=self.generator)
        return key.argsort(-1)


def arrangement(units: Units, persistent: Sequence[str]) -> Tensor | None:
    """Sort key ``(G, R, n)`` that puts units of like state side by side: one copy, then the other within groups.

    Neighbours then meet evenly spread variates (array quasi Monte Carlo, L'Ecuyer, Lecot & Tuffin 2008), which
    takes the standard error of stationary moments down 4 to 6 times against independent draws.
    """
    if not persistent:
        return None
    state = units.states[persistent[0]]
    if len(state) == 1:
        return state[0]
    count = state.shape[-1]
    return ranks(state[0]) // int(count**0.5) * count + ranks(state[1])


def ranks(values: Tensor) -> Tensor:
    """Of each value along the last axis, how many come before it in rising order.

    >>> ranks(torch.tensor([0.3, 0.1, 0.2]))
    tensor([2, 0, 1])
    """
    order = values.argsort(-1)
    return torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1]).expand(order.shape))


class Field:
    """What the population feeds back into its own gates: ``E[r_a^2]`` and ``E[r_a r_b]`` by gate that is read.

    Plain reads share the name ``""``. Values are read anew at each step, unless they are ``held``.
    """

    def __init__(self, values: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> None:
        self.values: dict[str, tuple[Tensor, Tensor]] = dict(values or {})
        self.held = values is not None

    @staticmethod
    def mean(fields: Sequence[Field]) -> Field:
        """Held, at the mean over several steps."""
        found = {}
        for name in fields[0].values:
            own, pair = zip(*(field.values[name] for field in fields), strict=True)
            found[name] = torch.stack(own).mean(0), torch.stack(pair).mean(0)
        return Field(found)

    def now(self) -> Field:
        """Held at the present values."""
        return Field(self.values)

    def one_copy(self) -> Field:
        """Held, for either of two copies by itself."""
        return Field({name: (own, own) for name, (own, _) in self.values.items()})

    def over_replicates(self) -> Field:
        """Held, with one mean that all replicates share, ``(G, 1, 1)``."""
        return Field(
            {n: (own.mean(1, keepdim=True), pair.mean(1, keepdim=True)) for n, (own, pair) in self.values.items()}
        )

    def moved(self, name: str, own: Tensor, pair: Tensor) -> Field:
        """Held, with the two moments of one name changed by ``own`` and ``pair``."""
        before = self.values[name]
        return Field({**self.values, name: (before[0] + own, before[1] + pair)})

    def with_chosen(self, mask: Tensor, other: Field) -> Field:
        """Held, with the values of ``other`` at the specs of ``mask`` (G,)."""
        chosen = mask[:, None, None]
        values = {}
        for name, (own, pair) in self.values.items():
            other_own, other_pair = other.values[name]
            values[name] = torch.where(chosen, other_own, own), torch.where(chosen, other_pair, pair)
        return Field(values)

    def read(self, name: str, units: Units, reading: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Moments ``(G, R, 1)`` for the gate that reads ``reading()`` ``(copies, G, R, n)``, or those held."""
        if self.held:
            return self.values[name]
        value = reading()
        own = units.mean(value.square().mean(0))
        pair = own if len(value) == 1 else units.mean(value[0] * value[1])
        self.values[name] = (own, pair)
        return own, pair


def draw_gates(
    laws: Laws,
    units: Units,
    field: Field,
    uniform: Tensor,
    correlation: Tensor | None = None,
    normal: Sequence[Tensor] | None = None,
    wanted: Sequence[str] | None = None,
) -> tuple[Values, Tensor | None]:
    """Pre-activations by gate and the pointwise input, each ``(copies, G, R, n)``; the cell's parameters beside them.

    ``Var_k = weight_var E[r_a^2] + (input_var + previous_input_var) R (+ bias_var where redrawn)``, and likewise
    the covariance of the two copies. Source: Gilboa et al. 2019 eqs. 4-6.

    Args:
        uniform: ``(variates(laws, copies), G, R, n)`` from ``Draws``.
        correlation: input correlation of this step, ``(G, 1, 1)``; the laws' own by default.
        normal: standard normals by gate, ``(copies, ...)``, those of the input last, instead of those that ``uniform``
            stands for.
        wanted: the gates to draw, and ``""`` for the pointwise input; by default all. What a gated read needs is then
            to be held in ``field``.
    """
    copies, weighted = units.copies, set(laws.weighted)
    sigma_z = laws.input_correlation if correlation is None else correlation
    normal = torch.special.ndtri(uniform).split(copies) if normal is None else normal
    columns = dict(zip((*laws.cell.gates, ""), normal, strict=False))
    known = {gate: laws.input_variance_of(gate).sqrt() * value for gate, value in units.inputs.items()}
    states, u = Values(**units.states), Values(**initial_parameters(laws.cell))
    for gate in [gate for gate in laws.cell.gates if wanted is None or gate in wanted]:
        fresh = torch.zeros_like(laws.drive[gate]) if gate in known else laws.drive[gate]
        variance, gap = fresh, fresh * (1 - sigma_z)
        if not laws.fixed:
            variance = variance + laws.bias_var[gate]
        if gate in weighted:
            own, pair = field.read(laws.read_name(gate), units, functools.partial(laws.cell.read, gate, states, u))
            variance, gap = variance + laws.weight[gate] * own, gap + laws.weight[gate] * (own - pair)
        mean = laws.bias_mean[gate] + known[gate] if gate in known else laws.bias_mean[gate]
        law = laws.bias_law[gate]
        if gate in units.offsets:
            mean = mean + units.offsets[gate]
        elif law is not None and not laws.fixed:
            mean = mean + bias_of(laws.cell, gate, law, uniform[-1])
        setattr(u, gate, mean + variance.sqrt() * correlated(columns[gate], gap / variance.clamp(min=1e-300)))
    if not laws.cell.input_enters_pointwise or (wanted is not None and "" not in wanted):
        return u, None
    fresh_x = correlated(columns[""], 1 - sigma_z)
    return u, known[""] if "" in known else laws.input_variance.sqrt() * fresh_x


def first_inputs(laws: Laws, normal: Tensor, correlation: Tensor | None = None) -> dict[str, Tensor]:
    """``Units.inputs`` of the first step from standard normals ``(copies * len(laws.remembered), G, R, n)``."""
    if not laws.remembered:
        return {}
    gap = 1 - (laws.input_correlation if correlation is None else correlation)
    columns = normal.chunk(len(laws.remembered))
    return {gate: correlated(column, gap) for gate, column in zip(laws.remembered, columns, strict=True)}


def next_inputs(laws: Laws, units: Units, uniform: Tensor, correlation: Tensor | None = None) -> Units:
    """The same units with the inputs of the step after: ``a z + sqrt(1 - a^2) fresh``.

    Args:
        uniform: those of this step's ``draw_gates``, of which the last stand for what is fresh.
        correlation: as in ``draw_gates``.
    """
    if not units.inputs:
        return units
    fresh = torch.special.ndtri(uniform[-units.copies * len(units.inputs) :])
    kept, rest = laws.autocorrelation, (1 - laws.autocorrelation.square()).sqrt()
    news = first_inputs(laws, fresh, correlation)
    return replace(units, inputs={gate: kept * value + rest * news[gate] for gate, value in units.inputs.items()})


def correlated(normal: Tensor, gap: Tensor) -> Tensor:
    """From independent normals ``(copies, G, R, n)`` those with correlation ``1 - gap`` between the two copies."""
    if len(normal) == 1:
        return normal
    gap = gap.clamp(0.0, 2.0)
    other = (1 - gap) * normal[0] + (gap * (2 - gap)).sqrt() * normal[1]
    return torch.stack(torch.broadcast_tensors(normal[0], other))


def redraws_law(laws: Laws) -> bool:
    """Whether a bias law is drawn from at every step."""
    return not laws.fixed and any(law is not None for law in laws.bias_law.values())


def variates(laws: Laws, copies: int) -> int:
    """How many uniform variates a unit needs in one step."""
    columns = copies * (len(laws.cell.gates) + laws.cell.input_enters_pointwise + len(laws.remembered))
    return columns + redraws_law(laws)


def bounded(states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """States kept finite, so that growth without bound shows as a huge number and never as NaN."""
    return {name: value.nan_to_num(HUGE, HUGE, -HUGE).clamp(-HUGE, HUGE) for name, value in states.items()}


def fixed_biases(laws: Laws, draws: Draws, widened: Iterable[str] | None) -> tuple[dict[str, Tensor], Tensor | None]:
    """Each unit's own bias beyond ``bias_mean``, by gate, and the units' weights (``None``: all equal).

    Slow units are rare units: memory at lag 1000 may rest on biases 4 standard deviations out. So the shared
    variate of the bias laws and the normal biases of the gates ``widened`` are drawn half from their law, half
    uniformly over +-6.5 standard deviations, and weighted back. ``None``: all are drawn from their law.
    """
    if not laws.fixed:
        return {}, None
    normal_gates = [gate for gate, value in laws.bias_var.items() if bool((value > 0).any())]
    law_gates = [gate for gate, law in laws.bias_law.items() if law is not None]
    if not normal_gates and not law_gates:
        return {}, None
    every = [*(["" for _ in law_gates[:1]]), *normal_gates]
    # An empirical law has its slow units in its list: nothing to widen.
    empirical = any(law is not None and law.kind == "empirical" for law in laws.bias_law.values())
    wide = [] if widened is None else [g for g in every if (not g and not empirical) or g in set(widened)]
    narrow = [gate for gate in every if gate not in wide]
    uniform = draws.uniform(len(wide) + len(narrow))
    normal: dict[str, Tensor] = {}
    weights: Tensor | None = None
    for name, column in zip(wide, uniform, strict=False):
        normal[name], weight = _widened_normal(column)
        weights = weight if weights is None else weights * weight
    for name, column in zip(narrow, uniform[len(wide) :], strict=True):
        normal[name] = torch.special.ndtri(column)
    if weights is not None:
        weights = weights / weights.mean(-1, keepdim=True)
    offsets: dict[str, Tensor] = {}
    for gate in dict.fromkeys([*normal_gates, *law_gates]):
        offset = torch.zeros(draws.shape, dtype=torch.float64)
        law = laws.bias_law[gate]
        if law is not None:
            variate = torch.special.ndtr(normal[""]).clamp(1e-300, 1 - 2.0**-53)
            offset = offset + bias_of(laws.cell, gate, law, variate)
        if gate in normal:
            offset = offset + laws.bias_var[gate].sqrt() * normal[gate]
        offsets[gate] = offset
    return offsets, weights


def _widened_normal(uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Half normal, half uniform over +-WIDE, and the weight that makes the mixture standard normal."""
    narrow = torch.special.ndtri((2 * uniform).clamp(1e-15, 1 - 1e-15))
    value = torch.where(uniform < 0.5, narrow, WIDE * (4 * uniform - 3))
    density = torch.exp(-value.square() / 2) / math.sqrt(2 * math.pi)
    inside = (value.abs() <= WIDE).to(density.dtype)
    return value, density / (0.5 * density + 0.25 * inside / WIDE)
