"""Digests and sketches: what they see of a tensor, and how near they come to a distance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.worker.tensors import digest, form_of, own_part, sketch, state_of, state_of_number

SIZES = (1, 3, 7, 8, 9, 8191, 8192, 8193, 70_000)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


def values(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
def test_a_digest_sees_every_bit_and_the_order(size: int) -> None:
    tensor = values(size)

    assert digest(tensor.clone()) == digest(tensor)
    assert digest(-tensor) != digest(tensor)
    for at in {0, size // 2, size - 1}:
        other = tensor.clone()
        other[at] = torch.nextafter(other[at], torch.tensor(9.0))
        assert digest(other) != digest(tensor)
    if size > 2:
        assert digest(tensor.flip(0)) != digest(tensor)
        assert digest(tensor.roll(1)) != digest(tensor)


def test_places_that_a_product_of_coefficients_would_confuse_are_told_apart() -> None:
    rows = values(128 * 8192).view(128, 8192)  # tiles, of which two words are exchanged across the diagonal
    other = rows.clone()
    other[3, 10:12], other[5, 6:8] = rows[5, 6:8], rows[3, 10:12]

    assert digest(other) != digest(rows)
    assert digest(rows.view(8192, 128).t().contiguous()) != digest(rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_state(dtype: torch.dtype) -> None:
    tensor = (values(30).abs() * 9).to(dtype)
    state = state_of(tensor)

    assert state is not None
    assert state.form == f"{str(dtype).removeprefix('torch.')} 30"
    wanted = torch.linalg.vector_norm(torch.view_as_real(tensor) if tensor.is_complex() else tensor.double())
    assert state.norm == pytest.approx(float(wanted), rel=1e-4)


def test_what_has_no_readable_values_has_no_state() -> None:
    sparse = torch.eye(3).to_sparse()
    fake = torch.empty(3, device="meta")

    assert state_of(sparse) is None
    assert state_of(fake) is None
    assert own_part(torch.eye(3).t()[:, 1:]).is_contiguous()  # type: ignore[union-attr]
    assert form_of(torch.tensor(1.0)) == "float32"


@given(st.integers(0, 1000), st.sampled_from((5, 500, 20_000)), st.floats(1e-6, 10.0))
def test_a_sketch_estimates_the_norm_of_a_difference(seed: int, size: int, scale: float) -> None:
    tensor, other = values(size, seed), values(size, seed + 1) * scale
    found = sketch(tensor).distance(sketch(tensor + other))

    true = float(torch.linalg.vector_norm(other))
    assert 0.15 * true < found < 3 * true  # eight products: chi with eight degrees of freedom
    assert sketch(tensor).norm == pytest.approx(float(torch.linalg.vector_norm(tensor)), rel=1e-5)


def test_a_state_tells_how_far_a_tensor_has_moved() -> None:
    first = values(5000)
    state = state_of(first + 0.1, first=sketch(first))

    assert state is not None
    assert state.moved == pytest.approx(0.1 * 5000**0.5, rel=0.7)
    assert state_of(first, first=sketch(first)).moved == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_have_a_digest(value: float) -> None:
    state, other = state_of(torch.full((4,), value)), state_of(torch.zeros(4))

    assert state is not None
    assert other is not None
    assert (state.norm, state.product) == (0.0, 0.0)
    assert state.digest != other.digest


def test_a_sketch_is_the_same_under_autocast() -> None:
    tensor = values(9000)
    with torch.autocast("cpu", torch.bfloat16):
        assert sketch(tensor) == sketch(tensor.clone())
    assert sketch(tensor).norm == sketch(tensor.clone()).norm


def test_numbers_differ_by_their_bits() -> None:
    assert state_of_number(3) == state_of_number(3.0)
    assert state_of_number(0.1 + 0.2) != state_of_number(0.3)
    assert state_of_number(float("inf")) != state_of_number(float("-inf"))
    assert state_of_number(float("nan")).norm == state_of_number(float("inf")).norm == 0.0
