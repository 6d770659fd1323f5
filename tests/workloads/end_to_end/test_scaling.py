"""The examples of docs/scaling.md on real ranks, their tables, and a collective that somebody adds to one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S

from pytest_distbench.store.files import read_run_record
from pytest_distbench.workloads.tables.scaling import scaling_rows

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


@pytest.fixture
def example(pytester: pytest.Pytester) -> Path:
    """The page's test, in a folder of its own."""
    pytester.makeini("[pytest]\n")
    return written("test_scaling.py", pytester.path)


def written(name: str, folder: Path) -> Path:
    """A file of the page, in a folder."""
    [code] = re.findall(rf"```python\n# {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = folder / name
    file.write_text(code)
    return file


def test_the_page_runs_as_it_says(example: Path, run_inside: RunInside) -> None:
    written("test_train.py", example.parent)
    run_inside("--world-size", "2", "--distbench-json=run.json").assert_outcomes(passed=2)
    *results, phases = read_run_record(example.parent / "run.json").results
    rows = scaling_rows(results)
    labels = [result.case.label for result in results]

    assert labels == [
        "local@ws1", "workers@ws1", "workers@ws2", "apart@ws2",
        "scaling_efficiency[workers=2]", "computing_share[workers=2]",
    ]  # fmt: skip
    assert all(label in PAGE.read_text() for label in labels[:4])
    assert [(row.workers, row.communicates) for row in rows] == [(1, False), (1, True), (2, True)]
    assert rows[0].efficiency == 1.0
    assert [row.exposed is None for row in rows] == [True, False, False]
    [launch, *_] = results[2].launches
    step = launch.breakdowns["step"]
    assert [part.path for part in step.parts] == [["forward"], ["backward"], ["optimizer"]]
    named = [part.path for part in phases.launches[0].breakdowns["step"].parts]
    assert named == [["forward"], ["backward"], ["backward", "communication"], ["optimizer"]]
    assert all(0 < rest < whole for rest, whole in zip(step.unaccounted_s, step.times_s, strict=True))


def test_a_collective_that_is_added_is_red_in_the_runs_that_have_it(example: Path, run_inside: RunInside) -> None:
    few = ("--world-size", "2", "--distbench-launches=2:2", "--distbench-confirm=off")
    run_inside("--distbench-update", *few).assert_outcomes(passed=1)
    example.write_text(
        example.read_text().replace(
            "            loss.backward()\n",
            "            loss.backward()\n"
            "        if rank.world_size > 1:\n"
            "            torch.distributed.all_reduce(loss.detach().clone())\n",
        )
    )
    result = run_inside(*few)
    result.assert_outcomes(failed=1)

    result.stdout.fnmatch_lines(["*communication changed: step: 1 all_reduce of 4 B float32 was added*"])
    stored = [json.loads(path.read_text()) for path in (example.parent / "baselines").rglob("*.json")]
    assert len(stored) == 6


SUITE = Path(__file__).parents[3] / "suites" / "scaling"
IMAGES = {"model": "mobilenet_v2", "batch": 8, "communication": "on"}
FILES = {"kind": "generated", "batch": 16, "steps": 6}
ONCE = ("--distbench-launches=1:1",)
"""One launch per point: a curve is exact, and no timing is judged."""


@pytest.mark.parametrize(
    ("name", "params", "faults"),
    [
        pytest.param(
            "convolutional",
            IMAGES,
            [  # half a batch, one shard for all, the loss divided, no momentum
                ('row.batch(rank.params["batch"],', 'row.batch(rank.params["batch"] // 2,'),
                ("rank.seed + rank.rank", "rank.seed"),
                ("row.loss(outputs, targets)", "row.loss(outputs, targets) / rank.world_size"),
                ("momentum=0.9", "momentum=0.9 * (rank.world_size == 1)"),
            ],
            marks=pytest.mark.nightly,
        ),
        (
            "reading",
            FILES,
            [  # half of what is read, one batch for ever
                ("scores = model(images)", "images, labels = images[::2], labels[::2]; scores = model(images)"),
                ("    net = network(", "    inputs._source = iter([next(inputs)] * 99)\n    net = network("),
            ],
        ),
    ],
)
def test_the_shipped_trainings_are_red_where_workers_compute_something_else(
    pytester: pytest.Pytester,
    run_inside: RunInside,
    name: str,
    params: dict[str, object],
    faults: list[tuple[str, str]],
) -> None:
    code = (SUITE / f"{name}.py").read_text()
    pytester.makeini("[pytest]\ndistbench_world_size = 2\ndistbench_confirm = off\n")
    pytester.makepyfile(
        test_it=f"""
        import pytest

        @pytest.mark.distbench(metrics=["loss_curve"])
        def test_it(distbench):
            distbench.run("{name}.py::train", params={params!r})
        """
    )
    file = pytester.path / f"{name}.py"
    file.write_text(code)
    run_inside("--distbench-update", "--distbench-launches=2").assert_outcomes(passed=1)
    run_inside(*ONCE).assert_outcomes(passed=1)
    for before, after in faults:
        assert before in code
        file.write_text(code.replace(before, after))
        result = run_inside(*ONCE)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["loss_curve: diverges at step *"])


def test_workers_that_train_on_something_else_are_red(example: Path, run_inside: RunInside) -> None:
    """On half a batch, and all on one shard."""
    options = ("--world-size", "2", "--distbench-confirm=off")
    run_inside("--distbench-update", *options, "--distbench-launches=2").assert_outcomes(passed=1)
    code = example.read_text()
    for before, after in (
        ("loss = model(x).square()", "loss = model(x[: len(x) // 2]).square()"),
        ("manual_seed(rank.rank)", "manual_seed(0)"),
    ):
        assert before in code
        example.write_text(code.replace(before, after))
        result = run_inside(*options, *ONCE)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["loss_curve: diverges at step 1, *"])
