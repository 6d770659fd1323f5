"""A sweep does whatever it does through the operation: other buffers out than in, a message in parts, none at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.launching import Launch

from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import BodyReference
from pytest_distbench.workloads import sweep
from pytest_distbench.workloads.collectives import OPERATIONS

pytestmark = [
    pytest.mark.spawn,
    pytest.mark.parametrize("launcher", ["warm"], indirect=True),  # what an operation does is the same under any
]

ROWS = """
import torch.distributed as dist

from pytest_distbench.workloads.collectives import Operation
from pytest_distbench.workloads.sweep import sweep

def _call(buffers, form):
    raise ValueError("wrong from the beginning")


ALL_GATHER = Operation(
    name="all_gather",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/all_gather.cu",
    call=lambda buffers, form: dist.all_gather(list(buffers.received.chunk(form.size)), buffers.sent),
    expected=lambda inputs: inputs.of_all(),
    counts=lambda elements, n: (elements // n, elements),
    granularity=lambda n: n,
    in_place=(False,),
)
BARRIER = Operation(
    name="barrier",
    busbw_factor=lambda n: 0,
    source="nothing is sent",
    call=lambda buffers, form: dist.barrier(),
    expected=None,
    granularity=lambda n: 0,
)
REDUCE = Operation(
    name="reduce",
    busbw_factor=lambda n: 1,
    source="nccl-tests src/reduce.cu",
    call=lambda buffers, form: dist.reduce(buffers.sent, dst=1),
    expected=lambda inputs: inputs.combine(lambda rows: rows.sum(0)) if inputs.rank == 1 else None,
    options={"redop": "sum", "root": 1},
)
IDLE = Operation(
    name="idle",
    busbw_factor=lambda n: 1,
    source="",
    call=lambda buffers, form: None,
    expected=lambda inputs: inputs.of(0),
    in_place=(False,),
)
BROKEN = Operation(name="broken", busbw_factor=lambda n: 1, source="", call=_call, expected=None)
def _last_wrong(buffers, form):
    dist.all_reduce(buffers.sent)
    if form.rank == form.size - 1:
        buffers.sent[-1] += 1


def _converted(buffers, form):
    whole = buffers.sent.float()
    dist.all_reduce(whole)
    buffers.sent.copy_(whole)


def _in_pieces(buffers, form):
    for piece in buffers.sent.chunk(50):
        dist.all_reduce(piece)


def all_reduce(call):
    return Operation(
        name="all_reduce",
        busbw_factor=lambda n: 1,
        source="",
        call=call,
        expected=lambda inputs: inputs.reduced(),
        reduces=True,
    )


LAST_WRONG = all_reduce(_last_wrong)
INJECTED = {
    "sound": all_reduce(lambda buffers, form: dist.all_reduce(buffers.sent)),
    "converted": all_reduce(_converted),
    "in pieces": all_reduce(_in_pieces),
}


def injected(rank):
    for name, row in INJECTED.items():
        with rank.point(form=name):
            sweep(rank, row)


def refused(rank):
    import torch

    from pytest_distbench.workloads.calls import Call
    from pytest_distbench.workloads.collectives import Buffers, Form
    from pytest_distbench.workloads.calls import refusal

    buffers = Buffers(torch.zeros(16, dtype=torch.bool), torch.zeros(8, dtype=torch.bool))
    form = Form(ranks=(0, 1), rank=rank.rank)

    def call():
        dist.reduce_scatter(buffers.received, list(buffers.sent.chunk(2)), op=dist.ReduceOp.AVG)

    for _ in range(300):
        assert "be cast" in refusal(rank, lambda: Call((buffers,), form, call), lambda: Call((), None, int))
        rank.barrier()
    rank.record("done", 1, better="exact")


UNEVEN = Operation(
    name="uneven",
    busbw_factor=lambda n: 1,
    source="",
    call=lambda buffers, form: None,
    expected=lambda inputs: inputs.of(0)[1:],
)
"""


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    file = tmp_path / "rows.py"
    file.write_text(ROWS)
    return Launch(launcher, tmp_path, file)


def swept(launch: Launch, row: str, **options: Any) -> LaunchRecord:
    """A row of the file, as :func:`collective_sweep` has it launched."""
    body = BodyReference(file=str(launch.file), function=row, called_by="pytest_distbench.workloads.sweep:sweep")
    return launch(row, body=body, **options)


def params(*sizes: int) -> dict[str, object]:
    return {"collective": "", "dtype": "float32", "sizes": sizes, "iterations": 3, "warmup": 1, "cache": "rotate"}


def test_an_operation_whose_output_is_another_buffer_is_measured_and_checked(launch: Launch) -> None:
    record = swept(launch, "ALL_GATHER", params=params(4, 24, 4096))

    assert (record.outcome, record.reason) == ("passed", "")
    wrong = {m.at["message_bytes"]: m.value for m in record.measurements if m.name == "wrong_elements"}
    assert wrong == {24: 0, 4096: 0}
    assert all(m.identity["in_place"] is False for m in record.measurements if m.name == "latency")
    fingerprint = record.fingerprints["latency[message_bytes=4096]"]
    assert [row.message_bytes for row in fingerprint.collectives["all"]] == [2048]


def test_an_operation_that_sends_nothing_is_measured_once(launch: Launch) -> None:
    record = swept(launch, "BARRIER", params=params(4, 24))

    assert [m.key for m in record.measurements] == ["latency[message_bytes=0]", "peak_memory"]


def test_a_result_is_checked_on_the_ranks_that_have_one(launch: Launch) -> None:
    record = swept(launch, "REDUCE", params=params(64))

    assert (record.outcome, record.reason) == ("passed", "")
    assert {m.name: m.value for m in record.measurements}["wrong_elements"] == 0


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("IDLE", r"idle float32 of 64 B: 32 wrong elements over all ranks; on rank .*element 0 is 1, expected 0"),
        ("BROKEN", "ValueError: wrong from the beginning"),  # and not that the pair is not supported
        ("UNEVEN", r"uneven: expected\(...\) has 15 elements, what a rank receives 16"),
        ("_call", "a collective of your own is an Operation, and this is <function _call"),
    ],
)
def test_a_wrong_operation_is_an_error(launch: Launch, row: str, text: str) -> None:
    record = swept(launch, row, params={**params(64), "dtype": "float32" if row != "BROKEN" else "int16"})

    assert record.outcome == "failed"
    assert re.search(text, record.reason)


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_wrong_element_at_the_last_index_of_one_rank_fails_with_it(launch: Launch, world_size: int) -> None:
    record = swept(launch, "LAST_WRONG", params=params(4096), world_size=world_size)

    last = world_size - 1
    assert f"all_reduce float32 of 4096 B: 1 wrong elements over all ranks; on rank {last} element 1023" in str(record)


@pytest.mark.parametrize("world_size", [2, 4])
def test_what_is_sent_in_another_type_or_in_pieces_is_seen_in_the_fingerprint(launch: Launch, world_size: int) -> None:
    record = launch("injected", params={**params(4000), "dtype": "bfloat16"}, world_size=world_size)

    assert (record.outcome, record.reason) == ("passed", "")
    sound, converted, in_pieces = (
        record.fingerprints[f"latency[form={form},message_bytes=4000]"] for form in ("sound", "converted", "in pieces")
    )
    assert differences(sound, converted)[0] == "1 all_reduce of 3.906 KiB bfloat16 became 1 of 7.812 KiB float32"
    assert differences(sound, in_pieces)[0] == "1 all_reduce of 3.906 KiB became 50 of 80 B"


EVERY = """
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.sweep import sweep

USUAL = {"dtype": "float32", "sizes": [64, 4096], "iterations": 4, "warmup": 1, "cache": "hot"}
FORMS = {
    "reduced in other ways": {"redop": ["avg", "product", "min", "max"]},
    "from another root": {"root": 1},
    "from every root": {"root": "shift"},
    "in the other place": {},
    "in parts": {"parts": 3},
    "coalesced": {"parts": 4, "together": "coalesced"},
    "at once": {"parts": 4, "together": "async"},
    "in one breath": {"mode": "batch", "iterations": 20, "over_ranks": "mean"},
    "of every type": {"dtype": "all", "sizes": [256]},
    "in half": {"group": "half"},
    "in halves": {"group": "halves"},
}


ALONE = {"as usual", "in parts", "at once", "from every root", "of every type"}
OF_FOUR = {"as usual", "from every root", "in half", "in halves"}


def does(row, name, form, world_size, is_short):
    return (
        (world_size > 1 or (name in ALONE and row.name != "send_recv"))
        and (world_size < 4 or name in OF_FOUR or not is_short)
        and (row.reduces or "redop" not in form)
        and (row.is_rooted or "root" not in form)
        and (row.coalesces or form.get("together") != "coalesced")
        and (len(row.in_place) > 1 or name != "in the other place")
        and ("group" not in form or world_size >= 4)
    )


def every(rank):
    from pytest_distbench.workloads.protocol import DTYPES

    types, sizes, is_short = [*DTYPES], USUAL["sizes"], not rank.params["all"]
    if is_short:
        types, sizes = ["bool", "int8", "uint8", "int64", "bfloat16", "float64", "complex64"], sizes[1:]
    for row in OPERATIONS.values():
        for name, form in {"as usual": {}, **FORMS}.items():
            if not does(row, name, form, rank.world_size, is_short):
                continue
            rank.params = {**USUAL, "sizes": sizes, **form}
            if name == "in the other place":
                rank.params["in_place"] = row.in_place[1]
            if form.get("dtype") == "all":
                rank.params["dtype"] = types
            with rank.point(operation=row.name, form=name):
                sweep(rank, row)
"""


@pytest.mark.parametrize(
    ("world_size", "are_all"), [(1, False), (2, False), (4, False), pytest.param(4, True, marks=pytest.mark.nightly)]
)
def test_every_operation_in_every_form_delivers_each_element(
    launcher: Launcher, tmp_path: Path, world_size: int, are_all: bool
) -> None:
    """A type of each sort and one size; on four ranks what two cannot show. At night all types, sizes and forms."""
    file = tmp_path / "every.py"
    file.write_text(EVERY)
    record = Launch(launcher, tmp_path, file)("every", params={"all": are_all}, world_size=world_size, timeout_s=120)

    assert (record.outcome, record.reason) == ("passed", "")
    measured = {(m.at["operation"], m.at["form"]) for m in record.measurements if m.name == "latency"}
    refused = {(m.at["operation"], m.at["form"]) for m in record.measurements if m.name == "supported" and not m.value}
    of_two = {"send_recv"} if world_size == 1 else set()
    assert {operation for operation, _ in measured | refused} == set(OPERATIONS) - of_two
    assert {"all_reduce", "all_gather", "broadcast", "send_recv"} - of_two <= {operation for operation, _ in measured}
    assert (("reduce", "in halves") in measured) is (world_size == 4)
    copied = {(m.at["operation"], m.at["form"]) for m in record.measurements if m.facts.get("copies")}
    is_short = world_size == 1 or (world_size == 4 and not are_all)
    assert copied == {(name, "in the other place") for name in ("all_reduce", "reduce") if not is_short}
    checked = [m for m in record.measurements if m.name == "wrong_elements"]
    assert len(checked) > 30 * (1 if world_size == 4 and is_short else world_size)
    assert all(m.value == 0 for m in checked)


def test_a_group_of_one_rank_does_nothing_that_needs_a_second(launch: Launch) -> None:
    launch.file = Path(sweep.__file__)
    record = launch("collective_sweep", params={**params(64), "collective": "send_recv"}, world_size=1)

    assert (record.outcome, record.reason) == ("skipped", "send_recv needs 2 ranks: its group has 1")


def test_an_unsupported_pair_is_recorded_with_its_reason_and_the_group_goes_on(
    launcher: Launcher, tmp_path: Path
) -> None:
    launch = Launch(launcher, tmp_path, Path(sweep.__file__))
    wanted = {**params(64), "collective": "all_reduce", "dtype": ["int16", "float32"], "redop": ["max", "band"]}
    record = launch("collective_sweep", params=wanted)

    assert (record.outcome, record.reason) == ("passed", "")
    answers = {(m.at["dtype"], m.at["redop"]): m for m in record.measurements if m.name == "supported"}
    assert {pair: m.value for pair, m in answers.items()} == {
        ("int16", "max"): 0, ("int16", "band"): 0, ("float32", "max"): 1, ("float32", "band"): 0,
    }  # fmt: skip
    assert answers["int16", "max"].facts["reason"] == "Invalid scalar type"
    assert "non-integral" in str(answers["float32", "band"].facts["reason"])
    assert [m.at["dtype"] for m in record.measurements if m.name == "latency"] == ["float32"]


def test_a_call_that_was_refused_is_over(launch: Launch) -> None:
    """Its error came back, some calls later and in one rank, from the barrier before an iteration."""
    record = launch("refused")

    assert record.reason == ""
