"""Whatever a test gives to the fixtures: it works, or the error says what was wanted, what was found, and where."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fixtures import made_up_distbench

from pytest_distbench.elastic import job, serving
from pytest_distbench.elastic.fixtures import Elastic, ElasticPool
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import BeyondBound, Misuse, Regression
from pytest_distbench.read import csv, jsonl, mllog, stdout
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.records.metric import Reader
from pytest_distbench.workloads.fixtures import CollectiveSweep, Communication
from pytest_distbench.workloads.scaling import TimeToAccuracy

HERE = Path(__file__)


SENDS = Fingerprint(collectives={"all": [Collective("all_reduce", "float32", 4096, "default", 1)]})


def body(rank: object) -> None:
    del rank


make = functools.partial(made_up_distbench, HERE)


class Hostile:
    """A value whose own methods raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __float__ = __index__ = __len__ = __repr__  # type: ignore[assignment]


nonsense = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2, 3, 10**400, -(2**70), 2**64]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["", "lower", "exact", "info", "curve", "a[b=1]", "a\nb", "x" * 300, "\ud800", "float32", "powers"]
    ),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-2, 5), st.floats(), st.text(max_size=3), st.none()), max_size=4),
    st.dictionaries(
        st.one_of(st.text(max_size=4), st.integers()), st.one_of(st.floats(), st.text(), st.none()), max_size=3
    ),
    st.sampled_from(
        [numpy.int64(3), numpy.float32(0.5), numpy.array([1.0, 2.0]), complex(1, 2), object(), Hostile(), range(3)]
    ),
    st.just(body),
    st.just(lambda *values: 1.0),
    st.sets(st.integers(), max_size=2),
)


def takes_or_refuses(call: Callable[[], object], name: str) -> None:
    try:
        call()
    except Misuse as error:
        text = str(error)
        assert text.startswith(name)
        assert "test_arguments.py:" in text
    except (pytest.skip.Exception, Regression):  # more ranks than the run has; a function that returns None
        return


def pool_of(distbench: Distbench, **arguments: Any) -> object:
    pool = ElasticPool(distbench, distbench._session.settings)
    return pool(**{"jobs": job("A", body, nodes=1), "slots": 2, "policy": "elastic", **arguments})


def job_of(distbench: Distbench, **arguments: Any) -> object:
    return pool_of(distbench, jobs=job(**{"name": "A", "body": body, "nodes": 1, **arguments}))


def serving_of(distbench: Distbench, **arguments: Any) -> object:
    return pool_of(distbench, serving=serving(**{"body": body, "demand": [(1, 1)], **arguments}))


def judge_with(distbench: Distbench, **arguments: Any) -> None:
    given = {"name": "ratio", "values": lambda a: a["step"], "of": distbench.measure(body), **arguments}
    with contextlib.suppress(BeyondBound):
        distbench.judge(**given)


def communicate(shape: str, **usual: Any) -> Callable[..., object]:
    return lambda d, **arguments: getattr(Communication(d, None), shape)(**{**usual, **arguments})


SHARED = "params launches timeout tolerance name"
CALLS: dict[str, tuple[Callable[..., object], str]] = {
    "distbench.run": (
        lambda d, **arguments: d.run(**{"body": body, **arguments}),
        f"body module args cwd env read makes_group world_size seeds cpus {SHARED}",
    ),
    "distbench.measure": (
        lambda d, **arguments: d.measure(body, **arguments),
        "params world_size launches timeout seeds name",
    ),
    "distbench.check": (
        lambda d, **arguments: d.check(HERE, **arguments),
        "cwd env args seeds params makes_group world_size timeout",
    ),
    "distbench.judge": (judge_with, "name values of unit better tolerance at params at_most at_least"),
    "collective_sweep": (
        lambda d, **arguments: CollectiveSweep(d, None)(**{"collective": "all_reduce", **arguments}),
        (
            "collective dtype sizes iterations warmup max_bytes cache tolerance typo redop mode over_ranks in_place "
            "root group parts together buffers"
        ),
    ),
    "time_to_accuracy": (
        lambda d, **arguments: TimeToAccuracy(d)(**{"train": body, "goal": 0.9, **arguments}),
        "train goal seeds params typo",
    ),
    "communication.buckets": (communicate("buckets"), "message_bytes tensors calls dtype iterations typo"),
    "communication.overlap": (
        communicate("overlap"),
        "message_bytes matrix multiplications dtype warmup tolerance",
    ),
    "communication.compression": (
        communicate("compression", hook="none"),
        "hook width layers batch approximation_rank timeout",
    ),
    "communication.links": (
        communicate("links"),
        "latency_bytes bandwidth_bytes pattern max_imbalance world_size",
    ),
    "communication.replay": (
        communicate("replay", fingerprint=SENDS),
        "fingerprint of warmup iterations tolerance name typo",
    ),
    "elastic": (
        lambda d, **arguments: Elastic(d, d._session.settings)(**{"body": body, "nodes": 2, **arguments}),
        (
            "body nodes plan start checkpoint_every steps args module cwd env read engine timers oversubscribed seed "
            f"{SHARED}"
        ),
    ),
    "elastic_pool": (
        pool_of,
        "jobs policy serving checkpoint_every engine timers compute oversubscribed launches timeout tolerance name",
    ),
    "elastic_pool: a job": (job_of, "name body nodes submit_s params seed"),
    "elastic_pool: a serving": (serving_of, "body demand params"),
}
"""A call, with what tells it from others -> how it is made, and its arguments."""


@pytest.mark.parametrize("called", CALLS)
@settings(max_examples=150)
@given(data=st.data())
def test_an_argument_is_taken_or_refused(
    called: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    distbench = make(tmp_path_factory.getbasetemp() / "b")
    call, names = CALLS[called]
    given = {data.draw(st.sampled_from(names.split())): data.draw(nonsense)}

    takes_or_refuses(lambda: call(distbench, **given), called.partition(": ")[0])


@pytest.mark.parametrize(
    ("make_reader", "text"),
    [
        (lambda: stdout(r"(.)", better="best"), r"read\.stdout: better='best'; wanted one of higher, lower, .*"),
        (lambda: stdout(r"(.)", better=[]), r"read\.stdout: better=\[\]; wanted one of .*"),
        (lambda: stdout(r"(.)", bettr="lower"), r"read\.stdout: unknown keyword bettr; known are at, .*"),
        (lambda: stdout(3), r"read\.stdout: 3 is a int; wanted a text or a path .*"),
        (lambda: csv(None, "loss"), r"read\.csv: None is a NoneType; wanted a text or a path .*"),
        (lambda: jsonl("log", "loss", unit=3, at_most=2), r"read\.jsonl: unit=3; wanted text.*"),
        (lambda: jsonl("log", "loss", at_most="fast"), r"read\.jsonl: at_most: 'fast' is no bound: .*"),
        (lambda: jsonl("log", "loss", unit="s", at_most="3 B"), r"read\.jsonl: at_most: .*"),
        (lambda: mllog("loss", at_most=1, at_least=2), r"read\.mllog: at_least=2 is more than at_most=1 .*"),
    ],
)
def test_a_reader_that_cannot_be_made_is_refused_at_its_line(make_reader: Callable[[], Reader], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text + r"\(test_arguments\.py:\d+\)"):
        make_reader()


Refused = Callable[[Distbench], object]


def body_with(**arguments: Any) -> Refused:
    return lambda distbench: distbench.run(body, **arguments)


def script_with(**arguments: Any) -> Refused:
    return lambda distbench: distbench.run(HERE, **arguments)


def command_with(*words: Any, **arguments: Any) -> Refused:
    return lambda distbench: distbench.run([*(words or ["true"])], **arguments)


def reads(pattern: Any = r"(\d+)", **reading: Any) -> Refused:
    return lambda distbench: distbench.run(HERE, read={"loss": stdout(pattern, **reading)})


def judges(**arguments: Any) -> Refused:
    return lambda distbench: distbench.judge(**{"name": "e", "values": [1.0], **arguments})


def text_of(command: str) -> Refused:
    return lambda distbench: distbench.run(command)


LOSS = "distbench.run: read['loss']: "
OF_TORCHRUN = "is set for each rank as torchrun does"


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (body_with(tolerance=-1.5), "distbench.run: tolerance=-1.5; wanted a fraction from 0 to 5, such as 0.05"),
        (body_with(tolerance={"a": 0.1, "b": 10}), "distbench.run: tolerance['b']=10; wanted a fraction from 0 to 5"),
        (body_with(launches="3"), "distbench.run: launches='3'; wanted a whole number of at least 1 and at most 1000"),
        (body_with(seeds="12"), "distbench.run: seeds='12'; wanted a list of whole numbers, each once"),
        (body_with(seeds=[2**64]), "distbench.run: seeds: a seed=18446744073709551616; wanted a whole number of at"),
        (body_with(timeout=0), "distbench.run: timeout=0; wanted a finite number above 0"),
        (body_with(args="--steps 5"), "distbench.run: args='--steps 5'; wanted a list, one text for each argument: ["),
        (body_with(params={"a": {1: 2}}), "distbench.run: params['a']: the key 1 is no text: ranks get parameters as"),
        (body_with(tolerence=1), "distbench.run: unknown keyword tolerence; known are body, module, "),
        (body_with(env={"RANK": "3"}), f"distbench.run: env: RANK {OF_TORCHRUN}"),
        (script_with(env={"TORCHELASTIC_RUN_ID": "3"}), f"distbench.run: env: TORCHELASTIC_RUN_ID {OF_TORCHRUN}"),
        (script_with(env={"PET_NNODES": "3"}), f"distbench.run: env: PET_NNODES {OF_TORCHRUN}"),
        (script_with(env={"DISTBENCH_SESSION": "3"}), "distbench.run: env: DISTBENCH_SESSION is reserved"),
        (command_with(env={"DISTBENCH_SESSION": "3"}), "distbench.run: env: DISTBENCH_SESSION is reserved"),
        (script_with(args=[True]), "distbench.run: args: True is a bool; wanted text, a number or a path"),
        (
            script_with(args=["--x={launchdir}"]),
            "args: '--x={launchdir}' has {launchdir}, which is no placeholder; want",
        ),
        (script_with(env={"X": "{World-Size}"}), "env['X']: '{World-Size}' has {World-Size}, which is no placeholder;"),
        (script_with(read={"wall_time": stdout(r"(\d+)")}), "the plugin itself records a metric of that name"),
        (script_with(read={"phase/step": stdout(r"(\d+)")}), "the plugin itself records a metric of that name"),
        (command_with(read={"loss": stdout(r"(\d+)", rank=1)}), "rank=1, and a command has one output"),
        (reads("("), "distbench.run: read"),
        (reads("loss"), "distbench.run: read"),
        (reads("(a)(b)"), "distbench.run: read"),
        (reads(rank=9), "rank=9, and there are 2 ranks"),
        (reads(rank=True), f"{LOSS}rank=True; wanted the number of a rank, or 'all'"),
        (reads(scale=0), f"{LOSS}scale=0; wanted a finite number other than 0"),
        (reads(scale=float("nan")), f"{LOSS}scale=nan; wanted a finite number other than 0"),
        (reads(skip=1.5), f"{LOSS}skip=1.5; wanted how many values at the start do not count"),
        (reads(first=0), f"{LOSS}first=0; wanted how many values count"),
        (reads(take="some"), f"{LOSS}take='some'; wanted one of first, last, min, max, mean, median, sum"),
        (reads(better="curve", take="last"), f"{LOSS}take='last' makes one number, and better='curve' judges a series"),
        (reads(at={"a[": 1}), f"{LOSS}at={{'a[': 1}}; wanted a dict from names, without [ ] = and , to plain values"),
        (reads(identity={"a": []}), f"{LOSS}identity={{'a': []}}; wanted finite numbers, printable texts, True or"),
        (text_of("mpirun 'my program'"), "A command is given as a list: ['mpirun', 'my program'] ("),
        (text_of("mpirun 'my program"), "A command is given as a list: ['mpirun', \"'my\", 'program'] ("),
        (
            text_of("torchrun --x train.py"),
            "given as a list: ['torchrun', '--x', 'train.py'], and a script that every rank runs",
        ),
        (judges(values=[1.0] * 1001), "distbench.judge('e'): values=[1.0, 1.0, "),
        (judges(values=range(10**9)), "distbench.judge('e'): values=range(0, 1000000000); wanted one number per repet"),
        (judges(values=(x for x in (1, 2))), "distbench.judge('e'): values=<generator"),
        (judges(values=[1e308]), "distbench.judge('e'): values=1e+308; wanted a finite number of at least -1e+300"),
        (judges(values=[-5.0], unit="s", at_most=1.0), "values=[-5.0]: -5 s is no time that anything takes"),
        (judges(name="  "), "distbench.judge: name='  '; wanted printable text without [ ]"),
        (
            judges(name="fingerprint"),
            "distbench.judge: name='fingerprint': the plugin itself records a metric of that",
        ),
        (judges(at={"a": 10**30}), f"distbench.judge('e'): at['a']={10**30}; wanted True, False, printable text"),
        (judges(at={"a": "x" * 101}), f"distbench.judge('e'): at['a']='{'x' * 101}'; wanted True, False, printable"),
        (
            judges(better="exact", tolerance=0.1),
            "distbench.judge('e'): tolerance=0.1 has no effect with better='exact'",
        ),
        (lambda d: CollectiveSweep(d, None)("all_reduce", tolerance="x"), "collective_sweep: tolerance='x'; wanted a"),
        (lambda d: TimeToAccuracy(d)(3, goal=0.9), "time_to_accuracy: train 3 is a int; wanted a function at module"),
        (lambda d: TimeToAccuracy(d)("no.py::t", goal=0.9), "time_to_accuracy: train 'no.py::t': there is no file"),
        (lambda d: TimeToAccuracy(d)(body, goal=0.9, timeout=0), "time_to_accuracy: timeout=0; wanted a finite number"),
        (lambda d: d.measure(body, tolerance=1), "distbench.measure: unknown keyword tolerance; known are body, "),
        (
            communicate("replay", fingerprint=SENDS, warmup=10**30),
            f"communication.replay: warmup={10**30}; wanted a whole",
        ),
    ],
)
def test_an_error_has_what_was_wanted_and_found_the_call_and_the_line(work: Refused, text: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse) as raised:
        work(make(tmp_path))

    assert text in str(raised.value)
    assert "(test_arguments.py:" in str(raised.value)


def test_words_that_only_look_like_those_are_taken(tmp_path: Path) -> None:
    distbench = make(tmp_path)
    args = ["{'loss': 1}", "{}", "{step}", "{launch_dir}", numpy.int64(5), numpy.float64(0.5)]

    assert distbench.run(HERE, args=args, env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, name="a")
    assert distbench.run(["true"], env={"RANK": "3"}, name="b")  # it starts its processes itself


def test_a_program_that_cannot_be_executed_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("exit 0\n")
    for program, told in [
        (tmp_path, "is a folder; wanted a program"),
        (script, r"may not be executed: chmod \+x /"),
        (tmp_path / "x", "there is no program"),
    ]:
        with pytest.raises(Misuse, match=told):
            make(tmp_path).run([program])
    script.chmod(0o700)
    assert make(tmp_path).run(["./run.sh"], cwd=tmp_path)  # as a shell in that folder finds it


def test_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    run = make(tmp_path).run(body, launches=numpy.int64(2), timeout=numpy.float32(3.0), seeds=numpy.arange(2))  # type: ignore[arg-type]

    assert len(run.launches) >= 2


def test_a_helper_outside_the_test_is_named_where_no_line_of_the_test_is() -> None:
    with pytest.raises(Misuse, match=r"f: nonsense \(test_arguments\.py:\d+\)"):
        Arguments("f", Path("elsewhere.py")).refuse("nonsense")


@pytest.mark.parametrize("values", [[1, 2.5], (1.0, 2.5), numpy.array([1.0, 2.5]), [numpy.float32(1.0), 2.5]])
def test_derived_numbers_may_come_in_any_list_or_array(values: Any, tmp_path: Path) -> None:
    assert make(tmp_path).judge("x", values).values("x") == [1.0, 2.5]


def test_a_point_of_numpy_s_numbers_is_taken(tmp_path: Path) -> None:
    judged = make(tmp_path).judge("e", [1.0], at={"n": numpy.int64(3), "x": numpy.float32(0.5)})

    assert judged.values("e[n=3,x=0.5]") == [1.0]


def test_runs_of_another_test_are_not_taken(tmp_path: Path) -> None:
    other = make(tmp_path).measure(body)

    with pytest.raises(Misuse, match=r"wanted a result of distbench\.run or distbench\.measure of this test"):
        make(tmp_path).judge("x", lambda a: 1.0, of=other)


def test_an_array_without_dimension_is_one_number(tmp_path: Path) -> None:
    assert make(tmp_path).judge("x", numpy.array(3.0)).values("x") == [3.0]  # type: ignore[arg-type]
