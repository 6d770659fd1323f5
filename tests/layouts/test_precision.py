"""The highest precision that a network has; what is computed in float32 is said, and is no nearer to controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from pytest_distbench.layouts.precision import Precision, highest

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(scope="module")
def product() -> Iterator[Callable[..., torch.Tensor]]:
    """An operator that is a matrix product and knows only float32, as ``grouped_mm`` does."""
    with torch.library._scoped_library("only_in_float32", "DEF") as library:
        library.define("product(Tensor a, Tensor b) -> Tensor")

        def compute(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if a.dtype != torch.float32 or b.dtype != torch.float32:
                raise RuntimeError(f"Expected a to be Float32, got {a.dtype}")
            return torch.mm(a, b)

        library.impl("product", compute, "CPU")
        yield torch.ops.only_in_float32.product


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        found: torch.Tensor = torch.ops.only_in_float32.product(a, b)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = ctx.saved_tensors  # type: ignore[attr-defined]
        multiply = torch.ops.only_in_float32.product
        return multiply(gradient, b.T.contiguous()), multiply(a.T.contiguous(), gradient)


class Net(nn.Module):
    """Linear, with a start that is made in the forward pass; ``as_wanted`` is what it does with its weight."""

    def __init__(self, as_wanted: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
        self.as_wanted = as_wanted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.as_wanted(x, self.weight).square().sum()


def from_zeros(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(x * 3, weight) + torch.mm(torch.ones(4, 8), weight)


def with_checks(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    assert weight.dtype == torch.float32, "a kernel for float32"
    return torch.mm(x, weight)


def computed(net: Net, precision: Precision) -> torch.Tensor:
    """The gradient."""
    net.zero_grad()
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(4, 8).to(precision.dtype)
    with precision.computing(net):
        net(x).backward()
    assert net.weight.grad is not None
    return net.weight.grad


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found - right).norm() / right.norm())


def found_for(net: Net) -> tuple[Precision, torch.Tensor]:
    precision = highest(lambda each: computed(net, each))
    return precision, computed(net, precision)


def test_a_network_with_float64_is_in_float64() -> None:
    precision, gradient = found_for(Net(torch.mm))

    assert (precision.dtype, precision.words(), gradient.dtype) == (torch.float64, "", torch.float64)


def test_float32_that_is_made_in_the_forward_pass_becomes_float64() -> None:
    precision, gradient = found_for(Net(from_zeros))
    _, right = found_for(Net(lambda x, weight: torch.mm(x * 3 + 1, weight)))

    assert precision.words() == ""
    assert off(gradient, right) < EPS / 1000
    assert torch.get_default_dtype() == torch.float32


def test_float32_that_a_network_asks_for_becomes_float64() -> None:
    precision, gradient = found_for(Net(lambda x, weight: torch.mm(x.float(), weight.float()).to(x.dtype)))
    _, right = found_for(Net(torch.mm))

    assert precision.words() == ""
    assert off(gradient, right) < EPS / 1000


def test_an_operator_without_float64_is_in_float32_alone(product: object) -> None:
    precision, gradient = found_for(Net(Product.apply))
    _, right = found_for(Net(torch.mm))

    assert precision.words() == "the values of one rank have product in float32, as there is none in float64"
    assert EPS / 100 < off(gradient, right) < 10 * EPS
    assert gradient.dtype == torch.float64


def test_a_network_that_checks_its_dtype_is_in_float32() -> None:
    net = Net(with_checks)
    before = net.weight.detach().clone()
    precision, gradient = found_for(net)
    _, right = found_for(Net(torch.mm))

    assert precision.words() == "the values of one rank are in float32, as the network has no float64"
    assert EPS / 100 < off(gradient, right) < 10 * EPS
    assert torch.equal(before, net.weight)
    assert gradient.dtype == torch.float64


def test_what_fails_in_each_precision_fails() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        found_for(Net(lambda x, weight: torch.mm(x, weight[:3])))
