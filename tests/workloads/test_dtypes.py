"""The element types of a sweep are torch's, by name and size."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.dtypes import DTYPES, dtype_of


@pytest.mark.parametrize("name", DTYPES)
def test_an_element_has_as_many_bytes_as_torch_says(name: str) -> None:
    assert dtype_of(name).item_bytes == getattr(torch, name).itemsize


@pytest.mark.parametrize("name", DTYPES)
def test_every_whole_number_up_to_the_largest_is_exact(name: str) -> None:
    numbers = torch.arange(dtype_of(name).largest + 1)
    found = numbers.to(getattr(torch, name))

    assert (found.real if found.is_complex() else found).to(torch.int64).tolist() == numbers.tolist()


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"float33.*bfloat16"):
        dtype_of("float33")
