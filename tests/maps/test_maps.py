"""A map turns parents into rows of U and gradients into matrices, one row per unit, the bias last."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dagfisher.errors import DeclarationError, ShapeError
from dagfisher.maps import ConstantMap, LinearMap, from_matrix, map_of, to_matrix
from dagfisher.nn import Prior


@given(
    leading=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    parents=st.integers(1, 5),
    units=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_rows_times_parameters_are_the_predictors(leading: list[int], parents: int, units: int, seed: int) -> None:
    """[u, 1] · [w, b] = a for every sample, in the same order: this is what makes U the right matrix."""
    torch.manual_seed(seed)
    layer, linear = nn.Linear(parents, units, dtype=torch.float64), LinearMap()
    inputs = torch.randn(*leading, parents, dtype=torch.float64)
    output = layer(inputs)
    rows, predictors = linear.rows(layer, inputs, output.shape), linear.predictors(layer, output)
    with_one = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(with_one @ to_matrix(layer.weight, layer.bias).T, predictors)
    assert linear.samples(layer, inputs, output.shape) == torch.Size(leading)
    assert linear.units(layer) == units


def test_the_derivative_of_a_predictor_is_its_row() -> None:
    layer, linear = nn.Linear(3, 2, dtype=torch.float64), LinearMap()
    inputs = torch.randn(4, 3, dtype=torch.float64)
    for sample in range(4):
        for unit in range(2):
            layer.zero_grad()
            output = layer(inputs)
            output[sample, unit].backward()
            gradient = to_matrix(layer.weight.grad, layer.bias.grad)
            expected = torch.zeros(2, 4, dtype=torch.float64)
            expected[unit] = torch.cat([linear.rows(layer, inputs, output.shape)[sample], torch.ones(1)])
            torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, True)])
def test_matrix_and_parameters_are_the_same_numbers(weight: bool, bias: bool) -> None:
    layer = nn.Linear(3, 2)
    parts = [p if wanted else None for p, wanted in ((layer.weight, weight), (layer.bias, bias))]
    matrix = to_matrix(*parts)
    assert matrix.shape == (2, 3 * weight + bias)
    back = from_matrix(matrix, *parts)
    for found, expected in zip(back, [p for p in parts if p is not None], strict=True):
        assert torch.equal(found, expected)


def test_a_matrix_puts_each_units_bias_last() -> None:
    matrix = to_matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0]))
    assert matrix.tolist() == [[1, 2, 5], [3, 4, 6]]


def test_a_layer_without_bias_has_none() -> None:
    layer = nn.Linear(3, 2, bias=False)
    assert LinearMap().parameters(layer) == (layer.weight, None)


def test_a_layer_without_parents_has_rows_without_columns() -> None:
    prior, constant = Prior(3), ConstantMap()
    output = prior((4, 5))
    assert constant.samples(prior, (4, 5), output.shape) == (4, 5)
    assert constant.rows(prior, None, output.shape).shape == (20, 0)
    assert torch.equal(constant.predictors(prior, output), prior.bias.expand(20, 3))
    assert constant.parameters(prior) == (None, prior.bias)
    assert constant.units(prior) == 3


def test_parents_of_the_wrong_width_are_an_error() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(ShapeError, match="3 features"):
        LinearMap().samples(layer, torch.ones(5, 4), torch.Size([5, 2]))


def test_rows_carry_no_gradient() -> None:
    layer = nn.Linear(3, 2)
    inputs = torch.randn(5, 3, requires_grad=True)
    assert not LinearMap().rows(layer, inputs, layer(inputs).shape).requires_grad


def test_each_module_has_the_map_of_its_type() -> None:
    assert isinstance(map_of(nn.Linear(2, 2)), LinearMap)
    assert isinstance(map_of(Prior(2)), ConstantMap)
    with pytest.raises(DeclarationError, match="Bilinear"):
        map_of(nn.Bilinear(2, 2, 2))
