"""The table of collectives, and how a sweep measures them: sizes, groups, numbers, presets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.options import BACKENDS
from pytest_distbench.workloads.collectives import OPERATIONS, operation
from pytest_distbench.workloads.protocol import (
    DTYPES,
    PRESETS,
    REDUCTIONS,
    TRANSPORTS,
    Inputs,
    RepeatedNumbers,
    groups_of,
    item_bytes,
    mlbench_sizes,
)


def inputs(count: int, *, world_size: int, **options: object) -> Inputs:
    return Inputs(count, rank=0, world_size=world_size, device=torch.device("cpu"), **options)  # type: ignore[arg-type]


def test_a_ramp_has_an_odd_period_and_parts_that_differ() -> None:
    sent = inputs(130, world_size=2).of(1)
    assert sent.make(0, 3, torch.float32).tolist() == [7, 8, 9]
    assert sent.make(118, 122, torch.float32).tolist() == [125, 126, 0, 1]

    sent = inputs(1 << 12, world_size=2).of(0)
    assert sent.make(0, 1 << 10, torch.float32).tolist() != sent.make(1 << 10, 1 << 11, torch.float32).tolist()

    first, second = (inputs(9, world_size=2, part=part).of(0).make(0, 9, torch.int64).tolist() for part in (0, 1))
    assert first != second

    assert inputs(3, world_size=2).of_all().make(0, 6, torch.int64).tolist() == [0, 1, 2, 7, 8, 9]

    pattern = RepeatedNumbers.repeat(torch.arange(3), 2**35)
    assert pattern[2**34 :].make(0, 3, torch.bfloat16).tolist() == [(2**34 + i) % 3 for i in range(3)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_sum_over_ranks_is_exact_in_every_dtype(dtype: str, world_size: int) -> None:
    made = inputs(300, world_size=world_size, dtype=dtype)
    rows = torch.stack([made.of(rank).make(0, 300, torch.int64) for rank in range(world_size)])
    found = made.reduced().make(0, 300, getattr(torch, dtype))
    wanted = rows.sum(0).clamp(max=1) if dtype == "bool" else rows.sum(0)

    assert (found.real if found.is_complex() else found).to(torch.int64).tolist() == wanted.tolist()


tiles = st.lists(st.integers(0, 200), min_size=1, max_size=5).map(torch.tensor)
whole = st.lists(st.tuples(tiles, st.integers(0, 12)), min_size=1, max_size=4)


def made(pieces: list[tuple[torch.Tensor, int]]) -> tuple[RepeatedNumbers, torch.Tensor]:
    rows = [tile.repeat(-(-count // len(tile)))[:count] for tile, count in pieces]
    return RepeatedNumbers.join(RepeatedNumbers.repeat(tile, count) for tile, count in pieces), torch.cat(rows).float()


@given(whole, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_any_part_of_any_slice_is_that_of_the_tensor(
    pieces: list[tuple[torch.Tensor, int]], first: int, last: int, begin: int, end: int
) -> None:
    pattern, tensor = made(pieces)
    pattern, tensor = pattern[first:last], tensor[first:last]

    assert len(pattern) == len(tensor)
    begin, end = sorted((min(begin, len(tensor)), min(end, len(tensor))))
    assert pattern.make(begin, end, torch.float32).tolist() == tensor[begin:end].tolist()


def rows(redop: str, *, world_size: int, dtype: str = "float32") -> tuple[torch.Tensor, torch.Tensor]:
    made = Inputs(100, rank=0, world_size=world_size, device=torch.device("cpu"), redop=redop, dtype=dtype)
    sent = torch.stack([made.of(rank).make(0, 100, torch.int64) for rank in range(world_size)])
    return sent, made.reduced().make(0, 100, torch.float64)


@pytest.mark.parametrize("redop", REDUCTIONS)
def test_torch_has_each_by_its_name(redop: str) -> None:
    assert hasattr(dist.ReduceOp, redop.upper())


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("redop", REDUCTIONS)
def test_no_result_is_that_of_another_operation_or_of_one_rank(redop: str, world_size: int) -> None:
    sent, result = rows(redop, world_size=world_size)
    others = {name: combine(sent).double() for name, (_, combine, _) in REDUCTIONS.items() if name != redop}

    assert [name for name, other in others.items() if torch.equal(other, result)] == []
    assert not any(torch.equal(one.double(), result) for one in sent)


@pytest.mark.parametrize("world_size", [2, 3, 4, 6, 8, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_results_are_exact_in_the_smallest_types(dtype: str, world_size: int) -> None:
    if dtype == "float8_e5m2" and world_size > 8:
        pytest.skip("three significant bits hold no sum of so many ranks")
    for redop in ("sum", "avg", "product", "min", "max"):  # torch has the others for integers only
        _, result = rows(redop, world_size=world_size, dtype=dtype)
        if redop == "avg" and dtype == "float8_e5m2":
            continue  # no backend has it
        assert result.to(getattr(torch, dtype)).double().tolist() == result.tolist(), redop


def test_an_unknown_collective_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"known are all_reduce, all_gather, .*; one of your own"):
        operation("all_reduze")

    _, result = rows("product", world_size=64)
    assert result.max() == 6


ALL_REDUCE = operation("all_reduce")


def test_bandwidths_and_sizes_are_those_of_nccl_tests() -> None:
    assert 1e9 / 1.0 * ALL_REDUCE.busbw_factor(4) == 1.5e9

    assert ALL_REDUCE.busbw_factor(1) == 0

    assert ALL_REDUCE.message_sizes([2, 4, 6, 64], item_bytes=4, world_size=3) == [4, 64]

    cut = replace(ALL_REDUCE, granularity=lambda n: n)
    assert cut.message_sizes([4, 12, 32, 35], item_bytes=4, world_size=3) == [12, 24]

    empty = replace(ALL_REDUCE, granularity=lambda n: 0)
    assert empty.message_sizes([4, 64], item_bytes=4, world_size=2) == [0]

    cut = replace(ALL_REDUCE, granularity=lambda n: n)

    with pytest.raises(ConfigurationError, match=r"multiples of 16 B, the largest size given is 12 B"):
        cut.message_sizes([4, 12], item_bytes=4, world_size=4)

    assert len(OPERATIONS) == 11

    assert operation("all_gather").message_sizes([1000], item_bytes=4, world_size=4, parts=4) == [768]


def test_the_table_is_read_without_torch() -> None:
    code = "import sys, pytest_distbench.workloads.collectives; print('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "factor", "size", "sent", "received"),
    [
        ("all_reduce", 1.5, 4100, 1025, 1025),
        ("all_gather", 0.75, 4096, 256, 1024),
        ("reduce_scatter", 0.75, 4096, 1024, 256),
        ("broadcast", 1.0, 4100, 1025, 1025),
        ("reduce", 1.0, 4100, 1025, 1025),
        ("gather", 0.75, 4096, 256, 1024),
        ("scatter", 0.75, 4096, 1024, 256),
        ("all_to_all", 0.75, 4096, 1024, 1024),
        ("all_to_all_v", 0.75, 4000, 1000, 1000),
        ("send_recv", 1.0, 4100, 1025, 1025),
        ("barrier", 0.0, 0, 0, 0),
    ],
)
def test_factor_size_and_counts_are_those_of_nccl_tests_on_4_ranks(
    name: str, factor: float, size: int, sent: int, received: int
) -> None:
    row = operation(name)

    assert row.busbw_factor(4) == factor
    assert row.busbw_factor(1) == 0
    assert row.message_sizes([4102], item_bytes=4, world_size=4) == [size]
    assert row.counts(size // 4, 4) == (sent, received)


@pytest.mark.parametrize("name", DTYPES)
def test_an_element_has_as_many_bytes_as_torch_says(name: str) -> None:
    assert item_bytes(name) == getattr(torch, name).itemsize


@pytest.mark.parametrize("name", DTYPES)
def test_every_whole_number_up_to_the_largest_is_exact(name: str) -> None:
    numbers = torch.arange(DTYPES[name][1] + 1)
    found = numbers.to(getattr(torch, name))

    assert (found.real if found.is_complex() else found).to(torch.int64).tolist() == numbers.tolist()


def test_sizes_are_those_of_the_protocols_and_unknown_names_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"float33.*bfloat16"):
        item_bytes("float33")

    sizes = PRESETS["powers"].sizes(4)
    assert (sizes[0], sizes[-1], len(sizes)) == (4, 67108864, 25)

    counts = sorted(set(numpy.logspace(0, 8, num=80).astype(int).tolist()))
    assert mlbench_sizes(4) == [4 * c for c in counts]


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_transport_is_of_known_backends_and_collectives_and_sets_what_no_other_sets(name: str) -> None:
    variables, collectives = TRANSPORTS[name]

    assert set(variables) <= set(BACKENDS)
    assert set(collectives) <= set(OPERATIONS)
    assert all(variables.values())
    assert all(variables != other for key, (other, _) in TRANSPORTS.items() if key != name)


@pytest.mark.parametrize(
    ("name", "world_size", "groups"),
    [
        ("all", 3, [(0, 1, 2)]),
        ("all", 1, [(0,)]),
        ("half", 4, [(0, 1)]),
        ("halves", 4, [(0, 1), (2, 3)]),
        ("halves", 5, [(0, 1), (2, 3)]),
        (3, 4, [(0, 1, 2)]),
    ],
)
def test_a_name_stands_for_ranks(name: str | int, world_size: int, groups: list[tuple[int, ...]]) -> None:
    assert groups_of(name, world_size) == groups


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half", "group='half' of 2 ranks is one rank: it needs 4 ranks, --world-size 4"),
        ("third", "group='third': wanted one of all, half, halves, or a number of ranks"),
        (3, "group=3: wanted 2 to 2 ranks, the world size"),
        (True, "group=True: wanted one of all"),
    ],
)
def test_an_invalid_group_is_an_error(name: str | int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        groups_of(name, 2)
