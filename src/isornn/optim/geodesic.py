"""Gradient descent on factorised matrices: bases stay orthogonal, spectra are free, any optimiser for the rest."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from isornn.optim.cayley import polished, turn, turned

Group = dict[str, Any]

# One step adds at most one epsilon to the error of M^T M (`rotated`), so float32 stays below 32 * 1.2e-7 = 4e-6.
_STEPS_BETWEEN_POLISHES = 32
# A basis further from orthogonal than this is no basis but a mistake.
_TOLERANCE = 1e-3
_PRECISIONS = (torch.float32, torch.float64)


class GeodesicSGD(Optimizer):
    """SGD for a model with matrices ``W = U diag(s(p)) V^T``: each of U, p, V by its own step, the rest by any rule.

    - bases, U and V: ``M <- (I + lr/2 A)^-1 (I - lr/2 A) M`` with ``A = G M^T - M G^T`` (`rotated`), and a step back
      onto the manifold every 32 steps (`polished`). In float32 ``max |M^T M - I|`` stays below 1e-5 for any number.
      With momentum, ``Y <- momentum Y + B`` takes the place of ``B = M^T G - G^T M``, in which ``A M = M B``: a sum of
      skew matrices is skew, and B turns with the basis, so Y needs no transport.
    - spectra, p: ``p <- p - lr/(2m) G``, which undoes the factor of ``ds/dp = 2m sigmoid'(p)``; with the margin
      ``None``, where p is s, ``p <- p - lr G``; with 0 p has no effect and rests.
    - the rest: ``w <- w - lr G``, or what ``rest`` does.

    Args:
        params: groups, most simply `isornn.nn.spectral.groups` of the model. What a group holds is said by its key
            ``kind``: ``"bases"``, (..., N, N) each; ``"spectrum"``, with the ``margin`` as a second key; ``"rest"``,
            also where the key is absent. The parameters of a model without groups are all of the rest: bases then
            take a plain step of SGD, and `isornn.nn.parametrize_spectral_` puts them back onto the manifold.
        lr: the learning rate of groups that do not bring their own ``lr``.
        geodesic_lr: that of the bases; ``lr`` if not given. Rates above some 1e-3 are for tasks on which they were
            tried, such as the copy task with 1e-2.
        momentum: of the bases, from 0 to below 1.
        rest: makes the rest's optimiser from its groups, as ``lambda groups: torch.optim.RMSprop(groups, lr=1e-3)``
            does. The learning rate is then the one that it sets. One whose step needs a closure, as
            `torch.optim.LBFGS`, is not possible.

    Learning-rate schedulers act on all groups, and ``state_dict`` covers all of the state: a run that is resumed from
    it is the same to the bit.

    Raises:
        ValueError: a rate or the momentum; a group's kind or margin; a basis that is not square, not orthogonal (to
            1e-3) or neither float32 nor float64; a ``rest`` that is not made from the groups, or needs a closure.

    Source: Vorontsov et al. 2017, section 3, eqs. 9 (as in `rotated`) and 11.

    >>> from isornn.nn import SpectralRNN, spectral
    >>> model = SpectralRNN(3, 8, margin=0.1)
    >>> optimizer = GeodesicSGD(spectral.groups(model), lr=0.1, geodesic_lr=1e-3)
    >>> model(torch.ones(5, 2, 3))[0].square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        *,
        geodesic_lr: float | None = None,
        momentum: float = 0.0,
        rest: Callable[[list[Group]], Optimizer] | None = None,
    ) -> None:
        geodesic_lr = lr if geodesic_lr is None else geodesic_lr
        for name, rate in (("lr", lr), ("geodesic_lr", geodesic_lr)):
            _check_rate(name, rate)
        if not (_is_real(momentum) and 0 <= momentum < 1):
            raise ValueError(f"momentum: {momentum} is not allowed; it must be from 0 to below 1")
        self._of_bases = {"lr": geodesic_lr, "momentum": momentum}
        self._rest: Optimizer | None = None
        groups = _groups(params)
        others = [group for group in groups if _kind(group) == "rest"]
        if rest is not None and others:
            # The two share the groups themselves, so a scheduler that sets our rates sets the other's.
            self._rest = _checked(rest(others), others)
        super().__init__(groups, {"lr": lr, "kind": "rest"})
        self._share()

    def add_param_group(self, param_group: Group) -> None:
        """A further group, as in ``params``.

        Raises:
            ValueError: as the class; a group of the rest, once the rest has an optimiser of its own.
        """
        kind = _kind(param_group)
        if kind == "bases":
            for name, value in self._of_bases.items():
                param_group.setdefault(name, value)
        if kind == "spectrum":
            _check_margin(param_group)
        super().add_param_group(param_group)
        try:
            self._check_added(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def _check_added(self, group: Group) -> None:
        _check_rate("lr", group["lr"])
        if group["kind"] == "bases":
            for basis in group["params"]:
                _check_basis(basis)
        elif group["kind"] == "rest" and self._rest is not None:
            if not any(group is known for known in self._rest.param_groups):
                raise ValueError("param_group: the rest has an optimiser of its own; make GeodesicSGD anew")

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of all groups.

        Raises:
            ValueError: a basis' gradient is not finite; the bases before it have moved.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["kind"] == "bases":
                self._move_bases(group)
            elif group["kind"] == "spectrum":
                _descend(group, _renormalised(float(group["lr"]), group["margin"]))
            elif self._rest is None:
                _descend(group, float(group["lr"]))
        if self._rest is not None:
            self._rest.step()
        return loss

    def _move_bases(self, group: Group) -> None:
        for basis in group["params"]:
            if basis.grad is None:
                continue
            state, now = self.state[basis], turn(basis, basis.grad)
            if group["momentum"]:
                now = state["velocity"] = now.add_(
                    state.get("velocity", torch.zeros_like(now)), alpha=group["momentum"]
                )
            new = turned(basis, float(group["lr"]) / 2 * now)
            state["steps"] = state.get("steps", 0) + 1
            if state["steps"] % _STEPS_BETWEEN_POLISHES == 0:
                new = polished(new)
            basis.copy_(new)

    def _share(self) -> None:
        """The rest's optimiser works on this one's groups and state."""
        if self._rest is not None:
            self._rest.param_groups = [group for group in self.param_groups if group["kind"] == "rest"]
            self._rest.state = self.state

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_rest": self._rest, "_of_bases": self._of_bases}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Called when unpickled, and by load_state_dict, which has made new groups and a new state.
        super().__setstate__(state)
        self._share()


def _groups(params: Iterable[Tensor] | Iterable[Group]) -> list[Group]:
    given: list[Any] = list(params)
    if all(isinstance(group, dict) for group in given):
        return given
    return [{"params": given, "kind": "rest"}]


def _checked(rest: Any, groups: list[Group]) -> Optimizer:
    """The rest's optimiser if it steps by itself and has the groups that it was given."""
    name = type(rest).__name__
    if not isinstance(rest, Optimizer):
        raise ValueError(f"rest: it gave {name}, which is not allowed; it must give an optimiser of torch.optim")
    closure = inspect.signature(rest.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"rest: {name} is not allowed, as its step needs a closure, which evaluates the loss again")
    if {id(group) for group in rest.param_groups} != {id(group) for group in groups}:
        raise ValueError(f"rest: it gave {name} of other groups, which is not allowed; give {name}(groups)")
    return rest


def _kind(group: Group) -> str:
    kind = group.setdefault("kind", "rest")
    if kind not in ("bases", "spectrum", "rest"):
        raise ValueError(f"kind: {kind!r} is not allowed; it must be 'bases', 'spectrum' or 'rest'")
    return str(kind)


def _descend(group: Group, rate: float) -> None:
    for parameter in group["params"]:
        if parameter.grad is not None:
            parameter.sub_(parameter.grad, alpha=rate)


def _renormalised(rate: float, margin: float | None) -> float:
    if margin is None:
        return rate
    return rate / (2 * margin) if margin else 0.0


def _is_real(value: Any) -> bool:
    """A finite number: as `torch.optim` has rates, also a tensor of one element."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex() and bool(value.isfinite())
    return isinstance(value, Real) and math.isfinite(value)


def _check_rate(name: str, rate: Any) -> None:
    if not (_is_real(rate) and rate >= 0):
        raise ValueError(f"{name}: {rate} is not allowed; it must be a finite number, 0 or larger")


def _check_margin(group: Group) -> None:
    margin = group.get("margin", math.nan)
    if margin is not None and not (_is_real(margin) and margin >= 0):
        raise ValueError(f"margin: {margin} is not allowed; a spectrum's is a number, 0 or larger, or None")


def _check_basis(basis: Tensor) -> None:
    if basis.dim() < 2 or basis.shape[-1] != basis.shape[-2]:
        raise ValueError(f"params: shape {tuple(basis.shape)} is not allowed; a basis is (..., N, N)")
    if basis.dtype not in _PRECISIONS:
        raise ValueError(f"params: a basis of {basis.dtype} is not allowed; it must be float32 or float64")
    unit = torch.eye(basis.shape[-1], dtype=basis.dtype, device=basis.device)
    error = float((basis.detach().mT @ basis.detach() - unit).abs().max())
    if not error < _TOLERANCE:
        raise ValueError(f"params: a basis with max |M^T M - I| = {error:.2g} is not allowed; it must be orthogonal")
