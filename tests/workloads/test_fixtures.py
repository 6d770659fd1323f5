"""The ready fixtures: what they refuse, and what they hand to the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support.fixtures import made_up_distbench
from support.projects import Project, run

from pytest_distbench.plugin.outcomes import Misuse, Run
from pytest_distbench.workloads import fixtures as shapes
from pytest_distbench.workloads import protocol
from pytest_distbench.workloads.fixtures import CollectiveSweep, Communication


def sweep(folder: Path, *arguments: Any, most: int | None = None, **options: Any) -> Run:
    run = CollectiveSweep(made_up_distbench(Path(__file__), folder), most)(*arguments, **options)
    assert isinstance(run, Run)
    return run


def wanted(run: Run) -> dict[str, Any]:
    return dict(run.result.case.params)


@pytest.mark.parametrize(
    ("collective", "options", "message"),
    [
        (len, {}, "collective=<built-in function len>: wanted a torch name, or 'my_operations.py::ROW'"),
        ("gone.py::ROW", {}, "there is no file"),
        ("all_reduze", {}, "unknown collective 'all_reduze': known are all_reduce, all_gather"),
        ("all_reduce", {"dtype": "float33"}, "unknown dtype 'float33': known are float32"),
        ("all_reduce", {"dtype": ["float32", "float33"]}, "unknown dtype 'float33'"),
        ("all_reduce", {"dtype": []}, "dtype=[]; wanted a name, a list of names, or 'all'"),
        ("all_reduce", {"world_size": 0}, "world_size=0; wanted a whole number of at least 1"),
        (
            "all_reduce",
            {"parts": 1000, "sizes": [64]},
            "no message size left for all_reduce: on 2 ranks it sends multiples of 4000 B in parts=1000",
        ),
        ("all_gather", {"sizes": [4]}, "no message size left for all_gather: on 2 ranks it sends multiples of 32 B"),
        ("all_reduce", {"redop": "mean"}, "unknown reduce operation 'mean': known are sum, avg, product"),
        ("broadcast", {"redop": "max"}, "broadcast reduces nothing; those that do: all_reduce, reduce_scatter, reduce"),
        ("all_reduce", {"root": 1}, "all_reduce has no root; those that have: broadcast, reduce, gather, scatter"),
        ("broadcast", {"root": 2}, "root=2; wanted a whole number of at least 0 and at most 1"),
        ("broadcast", {"in_place": False}, "torch has broadcast with in_place=True"),
        ("all_gather", {"in_place": "yes"}, "in_place='yes'; wanted True, False, or None"),
        ("gather", {"together": "coalesced"}, "torch coalesces all_reduce, all_gather, reduce_scatter, and not gather"),
        ("all_reduce", {"together": "pairs"}, "together='pairs'; wanted one of turns, coalesced, async"),
        ("all_reduce", {"group": "half"}, "group='half' of 2 ranks is one rank: it needs 4 ranks"),
        ("all_reduce", {"group": "third"}, "group='third': wanted one of all, half, halves, or a number of ranks"),
        ("all_reduce", {"sizes": numpy.array(4)}, "sizes=array(4); wanted a list of numbers of bytes"),
        ("all_reduce", {"sizes": {4}}, "sizes={4}; wanted a list of numbers of bytes, or one of powers"),
        ("all_reduce", {"sizes": range(1, 10**9)}, "sizes=range(1, 1000000000); wanted at most 10000 sizes"),
        ("all_reduce", {"sizes": "huge"}, "unknown preset of sizes 'huge': known are powers, small"),
        ("all_reduce", {"sizes": [1 << 30], "max_bytes": 1024}, "no message size left of 1"),
        ("all_reduce", {"sizes": "nccl-tests", "max_bytes": 2**16}, "no message size left"),
        ("all_reduce", {"sizes": [2]}, "no message size left of 1: float32 takes 4 B"),
        ("all_reduce", {"buffers": "registered"}, "buffers='registered' needs NCCL on GPUs"),
        ("all_reduce", {"transport": "rings"}, "unknown transport 'rings': known are ring, tree"),
        ("all_reduce", {"transport": []}, "transport=[]; wanted a name, a list of names, or 'all'"),
        ("all_gather", {"transport": "tree"}, "transport='tree' is for all_reduce, not for all_gather"),
        ("all_reduce", {"mode": "batch", "warmup": 0}, "mode='batch' needs a warm-up, which gives the fingerprint"),
        (
            "all_reduce",
            {"mode": "graph"},
            "mode='graph' replays one call: it needs --gpu, cache='hot', and a root that stays",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_explained(
    collective: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Misuse) as refused:
        sweep(tmp_path, collective, **options)

    assert message in str(refused.value)


OF_NUMPY = {"sizes": numpy.array([4, 16]), "group": numpy.int64(2), "in_place": numpy.bool_(True)}
OTHERWISE = {"iterations": 5, "mode": "per-iteration"}
OF_NCCL_TESTS = {"sizes": [33554432], "iterations": 20, "warmup": 1, "mode": "batch", "over_ranks": "mean"}


@pytest.mark.parametrize(
    ("collective", "options", "found"),
    [
        ("all_reduce", {"sizes": [5, 9]}, {"sizes": [5, 9]}),
        ("barrier", {"sizes": [4, 8]}, {"sizes": [4, 8]}),  # it sends nothing
        ("all_reduce", {"sizes": [4, 8, 16], "max_bytes": 8, "most": 4}, {"sizes": [4]}),
        ("all_reduce", {"redop": ["max", "max"], "sizes": [4096]}, {"redop": ["max"]}),
        ("all_reduce", OF_NUMPY, {"sizes": [4, 16], "group": 2, "in_place": True}),
        ("all_reduce", {"sizes": "nccl-tests"}, OF_NCCL_TESTS),
        ("all_reduce", {"sizes": "nccl-tests", **OTHERWISE}, {"iterations": 5, "mode": None}),
        ("all_reduce", {"sizes": "mlbench"}, {"iterations": 100}),
    ],
)
def test_a_sweep_has_what_it_was_given_and_what_its_preset_says_else(
    collective: str, options: dict[str, Any], found: dict[str, Any], tmp_path: Path
) -> None:
    params = wanted(sweep(tmp_path, collective, **options))

    assert {name: params.get(name) for name in found} == found
    assert [type(params.get(name)) for name in found] == [type(value) for value in found.values()]


def test_sizes_and_types_are_asked_for_by_a_word(tmp_path: Path) -> None:
    assert wanted(sweep(tmp_path / "a", "all_to_all", sizes="mlbench"))["sizes"][:3] == [4, 8, 12]
    assert "complex128" in wanted(sweep(tmp_path / "b", "all_reduce", dtype="all", sizes=[4096]))["dtype"]


def test_usual_choices_are_no_part_of_the_workload_so_that_new_ones_leave_baselines_valid(tmp_path: Path) -> None:
    assert wanted(sweep(tmp_path, "all_reduce", sizes=[4], redop="sum", parts=1, group="all", root=0)) == {
        "collective": "all_reduce", "dtype": "float32", "sizes": [4], "iterations": None, "warmup": 5,
        "cache": "rotate",
    }  # fmt: skip


@pytest.fixture
def three_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is for all_reduce alone."""
    rows = {"wide": (), "narrow": (), "deep": ("all_reduce",)}
    for module in (shapes, protocol):
        made = {name: ({"gloo": {"HOW": name}, "nccl": {}}, collectives) for name, collectives in rows.items()}
        monkeypatch.setattr(module, "TRANSPORTS", made)


@pytest.mark.usefixtures("three_transports")
def test_a_transport_is_variables_of_the_ranks_and_part_of_the_workload(tmp_path: Path) -> None:
    wide, narrow = (sweep(tmp_path, "all_reduce", transport=name) for name in ("wide", "narrow"))

    assert wanted(wide)["env"] == {"HOW": "wide"}
    assert wanted(wide)["transport"] == "wide"
    assert wide.result.case.key == narrow.result.case.key
    assert wide.result.case.workload != narrow.result.case.workload


@pytest.mark.usefixtures("three_transports")
def test_of_several_transports_each_is_a_case_and_all_are_those_that_the_collective_has(tmp_path: Path) -> None:
    both = CollectiveSweep(made_up_distbench(Path(__file__), tmp_path), None)("broadcast", transport="all", name="b")

    assert isinstance(both, list)
    assert [run.result.case.run for run in both] == ["b wide", "b narrow"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sizes": "nccl-tests", "most": 2**16}, "smallest message has 32 MiB, --distbench-max-message is 64 KiB"),
        ({"transport": "ring"}, "nccl can use 'ring', and gloo cannot choose"),
    ],
)
def test_a_sweep_that_cannot_be_here_is_skipped(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=text):
        sweep(tmp_path, "all_reduce", **options)


@pytest.mark.parametrize(
    ("shape", "arguments", "text"),
    [
        ("buckets", {"tensors": [1, 214], "message_bytes": 400}, "214 tensors of 100 elements: there can be 100 at"),
        ("buckets", {"message_bytes": 10}, "10 B are no whole number of float32 elements, which take 4 B each"),
        ("buckets", {"message_bytes": 1 << 60}, "wanted a whole number of at least 1 and at most"),
        ("buckets", {"tensors": []}, "tensors=[]; wanted a list"),
        ("buckets", {"tensors": [2, numpy.int64(2)]}, "each can be measured only once"),
        ("buckets", {"tensors": torch.tensor(3.0)}, "tensors=tensor(3.); wanted a list"),
        ("buckets", {"calls": ["all"]}, "unknown calls 'all': known are each, coalesced, flattened"),
        ("buckets", {"dtype": "float33"}, "unknown dtype 'float33': known are"),
        ("buckets", {"root": 0}, "communication.buckets: unknown keyword root; known are message_bytes, "),
        ("overlap", {"dtype": "int32"}, "dtype='int32'; matrices have one of float32, float16, bfloat16, float64"),
        ("overlap", {"message_bytes": 6}, "6 B are no whole number of float32 elements"),
        ("overlap", {"matrix": 0}, "matrix=0; wanted a whole number of at least 1"),
        ("compression", {"hook": "gzip"}, "unknown hook 'gzip': known are none, fp16, bf16, powersgd"),
        ("compression", {"hook": "powersgd", "width": 8, "approximation_rank": 9}, "approximation_rank=9; wanted"),
        ("links", {"pattern": "ring"}, "unknown pattern 'ring': known are ping-pong, one-way"),
        ("links", {"max_imbalance": 1}, "max_imbalance=1; wanted a finite number above 1"),
        ("links", {"world_size": 1}, "communication.links: a link needs two ranks, and this test has 1"),
    ],
)
def test_what_cannot_be_measured_is_explained(shape: str, arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    communication = Communication(made_up_distbench(Path(__file__), tmp_path), None)
    with pytest.raises(Misuse) as refused:
        getattr(communication, shape)(**arguments)

    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("call", "size"),
    [("overlap()", "4 MiB"), ("buckets(message_bytes=2**21)", "2 MiB"), ("links(bandwidth_bytes=2**17)", "128 KiB")],
)
def test_messages_larger_than_the_option_allows_are_not_sent(project: Project, call: str, size: str) -> None:
    folder = project(f"def test_it(communication):\n    communication.{call}\n")

    result = run(folder, "--distbench-max-message=64KiB", "-rs")

    result.stdout.fnmatch_lines([f"SKIPPED*not run: its message has {size}, --distbench-max-message is 64 KiB"])
