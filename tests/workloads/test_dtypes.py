"""The element types of a sweep are torch's, by name and size."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.dtypes import ITEM_BYTES, item_bytes


@pytest.mark.parametrize("name", ITEM_BYTES)
def test_an_element_has_as_many_bytes_as_torch_says(name: str) -> None:
    assert item_bytes(name) == getattr(torch, name).itemsize


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"float33.*bfloat16"):
        item_bytes("float33")
