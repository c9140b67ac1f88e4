"""The law of inputs, read off a batch of them."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from isornn.cells import Gate, Input, Spec, SpecError, Vanilla


def test_the_law_of_a_batch_has_its_features_means_and_variances() -> None:
    x = torch.rand(50, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    features = x.detach().double().reshape(200, 3)
    law = Input.of(x)
    assert law.mean == pytest.approx(float(features.mean(0).square().mean().sqrt()), rel=1e-12)
    assert law.variance == pytest.approx(float(features.var(0, correction=0).mean()), rel=1e-12)
    assert (law.correlation, law.autocorrelation) == (1.0, 0.0)
    assert Input.of(torch.tensor([3, 4])) == Input(0.25, mean=3.5)
    assert Input.of(torch.zeros(2, 3)) == Input(0.0)


@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 5, 3), (1, 1)])
def test_the_second_moment_is_the_mean_square_whatever_the_mean(shape: tuple[int, ...]) -> None:
    x = 3 + torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert Input.of(x).second_moment == pytest.approx(float(x.double().square().mean()), rel=1e-14)


def test_means_that_cancel_over_features_are_means() -> None:
    law = Input.of(torch.tensor([[1.0, -1.0], [1.0, -1.0]]))
    assert (law.variance, law.mean) == (0.0, 1.0)


def spec(**law: float) -> Spec:
    return Spec(Vanilla(), {"h": Gate(0.5, 1.0)}, Input(**law), biases="fixed")


def test_files_hold_mean_and_autocorrelation_only_where_they_are_not_0() -> None:
    assert spec().to_json()["input"] == {"variance": 1.0, "correlation": 1.0}
    full = spec(mean=0.5, autocorrelation=0.9)
    assert full.to_json()["input"] == {"variance": 1.0, "correlation": 1.0, "mean": 0.5, "autocorrelation": 0.9}
    assert Spec.from_json(full.to_json()) == full
    assert "input=Input(mean=0.5, autocorrelation=0.9)" in repr(full)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ({"mean": -1.0}, r"input.mean: -1.0 is not allowed; it must be a finite number from 0 to 1e\+06"),
        ({"mean": float("nan")}, "input.mean: nan"),
        (
            {"autocorrelation": -0.1},
            "input.autocorrelation: -0.1 is not allowed; it must be a finite number from 0 to 1",
        ),
        ({"autocorrelation": 1.0}, "input.autocorrelation: 1.0 is not allowed; it must be below 1"),
    ],
)
def test_a_law_out_of_range_is_refused(law: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec(**law)


def test_redrawn_networks_have_no_use_for_an_autocorrelation() -> None:
    with pytest.raises(SpecError, match=r'input.autocorrelation: 0.5 .* set biases="fixed"'):
        Spec(Vanilla(), input=Input(autocorrelation=0.5))


def test_new_fields_are_replaced_by_path_and_batched() -> None:
    batch = spec().replace("input.autocorrelation", torch.tensor([0.0, 0.5])).replace("input.mean", 2.0)
    assert batch.batch_shape == (2,) and batch.input.remembers and not batch.input.is_centred


@pytest.mark.parametrize("x", [torch.zeros(0, 3), torch.tensor([1.0, float("nan")]), torch.tensor([float("inf")])])
def test_a_batch_that_says_nothing_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(
        SpecError, match=r"input: tensor\(.* is not allowed; it must have numbers, and all of them must be finite"
    ):
        Input.of(x)


def test_a_tensor_in_the_place_of_a_law_is_refused_in_one_line() -> None:
    with pytest.raises(SpecError, match=r"input: tensor\(.* is not allowed; .*Input.of\(batch\) makes one") as refused:
        Spec(Vanilla(), {"h": Gate(1.0)}, torch.randn(4, 3, 2))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: gate(weight_var=torch.ones(0)), r"gates\.h\.weight_var: .* at least one number"),
        (lambda: gate(weight_var=torch.ones(2).to_sparse()), r"gates\.h\.weight_var: .* dense tensor"),
        (lambda: gate(weight_var=np.array([1.0, 2.0])), r"gates\.h\.weight_var: .* finite number"),
        (
            lambda: gate(weight_var=torch.ones(2), input_var=torch.ones(3)),
            r"spec: .*gates\.h\.weight_var \(2,\), gates\.h\.input_var \(3,\).* broadcast together",
        ),
        (lambda: Input.of(cast(Any, [1, 2])), "input: .* real numbers"),
        (lambda: Input.of(1j * torch.ones(4, 3)), "input: .* real numbers"),
        (lambda: Input.of(torch.eye(3).to_sparse()), "input: .* dense tensor"),
    ],
)
def test_numbers_that_no_theory_takes_are_refused_by_name(made, words):
    with pytest.raises(SpecError, match=words):
        made()


def gate(**numbers):
    return Spec(Vanilla(), {"h": Gate(**numbers)})
