"""What is added from outside, by a row in a table, without an edit of the package: docs/dev/extending.md."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launching import RunInside

from pytest_distbench.commands.cli import main
from pytest_distbench.frames import read_run
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.report.formats import FORMATS
from pytest_distbench.report.tables import TABLES
from pytest_distbench.store.files import read_run_record

PAGE = (Path(__file__).parents[2] / "docs" / "dev" / "extending.md").read_text()


def example(part: str) -> str:
    """The example of the page with this in it."""
    [found] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if part in block]
    return str(found)


@pytest.mark.usefixtures("own_rows")
def test_a_launcher_is_one_row(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(example('LAUNCHERS["mine"]'))
    pytester.makepyfile(test_it="def body(rank):\n    pass\n\ndef test_step(distbench):\n    distbench.run(body)\n")
    command = ("--distbench-launcher", "mine")
    recorded = pytester.runpytest_inprocess(*command, "--distbench-update", "--distbench-launches", "3")

    assert recorded.ret == 0
    assert [path.name for path in pytester.path.rglob("*.mine.json")] == ["ws2.gloo.mine.json"]
    compared = pytester.runpytest_inprocess(*command, "-v")
    compared.stdout.fnmatch_lines(["distbench *ranks started by mine*", "*step*20 ms*20 ms*"])
    assert compared.ret == 0


NAPS = """
def test_it(nap):
    nap(0.01)
"""


@pytest.mark.usefixtures("own_rows")
def test_a_kind_of_launch_is_one_row(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(example("LAUNCH_KINDS["))
    pytester.makepyfile(test_it=NAPS)
    recorded = pytester.runpytest_inprocess("--distbench-update", "--distbench-launches=3")
    compared = pytester.runpytest_inprocess("-v")
    pytester.makepyfile(test_it=NAPS.replace("0.01", "0.02"))
    other = pytester.runpytest_inprocess()

    assert (recorded.ret, compared.ret) == (0, 0)
    assert [path.name for path in pytester.path.rglob("*.nap.json")] == ["ws2.gloo.nap.json"]
    compared.stdout.fnmatch_lines(["*nap*10 ms*10 ms*exact*"])
    other.stdout.fnmatch_lines(["x test_it* the case's parameters changed*; seconds was 0.01 and is 0.02"])


@pytest.mark.usefixtures("own_rows")
def test_what_happens_around_every_launch_is_one_row(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches of simulated ranks, and of a kind that was added."""
    pytester.makeconftest(example("LAUNCH_KINDS[") + example("AROUND["))
    pytester.makepyfile(
        test_it="""
        def body(rank):
            pass

        def test_nap(nap):
            nap(0.01)

        def test_ranks(distbench):
            distbench.run(body, params={"stand_in": {"step": 0.02}})
        """
    )
    command = ("-p", "pytest_distbench.testing", "--distbench-launcher=stand-in")
    plain = pytester.runpytest_inprocess(*command, "--distbench-update", "--distbench-launches=3")
    monkeypatch.setenv("COOLING", "low")
    cooled = pytester.runpytest_inprocess(*command, "--distbench-no-baseline=fail", "--distbench-json=run.json")

    assert (plain.ret, cooled.ret) == (0, 1)
    cooled.assert_outcomes(failed=2)  # what was measured under other conditions is no baseline
    results = read_run_record(pytester.path / "run.json").results
    assert [(r.case.name, r.case.conditions.around) for r in results] == [("ws2:@cooling=low", {"cooling": "low"})] * 2
    assert all(launch.remarks == ["the fans were set"] for r in results for launch in r.launches)

    stored = sorted((pytester.path / "baselines").rglob("*.json"))
    pytester.runpytest_inprocess(*command, "--distbench-update", "--distbench-launches=3").assert_outcomes(passed=2)
    monkeypatch.delenv("COOLING")
    pytester.runpytest_inprocess(*command, "--distbench-prune").assert_outcomes(passed=2)
    assert len(sorted((pytester.path / "baselines").rglob("*.json"))) == 2 * len(stored)  # none was lost, none unused


ON_NODES = """
    def body(rank):
        rank.barrier()
        rank.record("node", rank.node, better="exact", reduce="max")

    def test_step(distbench):
        distbench.run(body)
"""


@pytest.mark.spawn
def test_a_site_is_one_file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two relays on this host stand for two nodes; numbers come back through their streams."""
    monkeypatch.setenv("NODES", "localhost,localhost")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    pytester.makeconftest(example('LAUNCHERS["nodes"]'))
    pytester.makepyfile(test_it=ON_NODES)
    result = pytester.runpytest_subprocess("--distbench-launcher=nodes", "--world-size=2", "-v")

    result.stdout.re_match_lines([r"N  node +1 "])
    result.assert_outcomes(passed=1)


@pytest.mark.spawn
@pytest.mark.parametrize("launcher_name", ["warm", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_a_collective_is_one_row(pytester: pytest.Pytester, launcher_name: str) -> None:
    pytester.makepyfile(my_operations=example("BROADCAST ="), test_broadcast=example("::BROADCAST"))
    result = pytester.runpytest_subprocess(f"--distbench-launcher={launcher_name}", "--distbench-json=run.json")

    assert result.ret == 0
    rows = read_run(pytester.path / "run.json")
    found = {(row.metric, row.message_bytes): row.value for row in rows.itertuples()}
    assert found["wrong_elements", 4] == found["wrong_elements", 4096] == 0
    assert found["latency", 4096] > 0


@pytest.mark.spawn
def test_a_metric_kind_is_one_row(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRIC_KINDS, "worst", METRIC_KINDS["lower"])  # undone after the test; the example sets its own
    pytester.makepyfile(test_worst=example('METRIC_KINDS["worst"]'))
    recorded = run_inside("--distbench-update")
    same = run_inside()
    monkeypatch.setenv("SLOWER", "2")
    slower = run_inside()

    assert (recorded.ret, same.ret, slower.ret) == (0, 0, 1)
    slower.stdout.re_match_lines([r"pause \+(9\d|10\d)\.\d % .*\(threshold <= 1\.\d times\)"])


RECORD = str(Path(__file__).parents[1] / "store" / "run_record.json")


def test_a_report_format_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("page", "names"):
        monkeypatch.setitem(FORMATS, name, FORMATS["text"])  # undone after the test; the example sets its own
    exec(example("FORMATS["), {})
    page = tmp_path / "run.html"

    assert main(["report", RECORD, "--table", "launches", "--format", "names"]) == 0
    assert capsys.readouterr().out == "a.py::t[ws2]\n" * 3
    assert main(["report", RECORD, "--format", "names", "-o", str(tmp_path / "names.txt")]) == 0
    assert (tmp_path / "names.txt").read_text() == "regressed\nregressed\n"
    capsys.readouterr()
    assert main(["report", RECORD, "--format", "page", "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"page written to {page}: open it in a browser\n"
    assert {"verdicts", "launches"} <= set(re.findall(r"<h2>(\w+)", page.read_text()))


def test_a_column_of_a_table_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = dataclasses.replace(TABLES["launches"], columns=[*TABLES["launches"].columns])
    monkeypatch.setitem(TABLES, "launches", table)  # undone after the test
    exec(example(".columns.append("), {})

    assert main(["report", RECORD, "--table", "launches"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("cores of others  reason  crowding")
    assert main(["report", RECORD, "--table", "launches", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("foreign_cores,reason,crowding")


def test_a_table_is_one_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(TABLES, "outcomes", TABLES["launches"])  # undone after the test; the example sets its own
    exec(example('TABLES["outcomes"]'), {})

    assert main(["report", RECORD, "--table", "outcomes"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "test    ended",
        "t[ws2]  passed",
        "t[ws2]  passed",
        "t[ws2]  failed",
        "3 launches",
    ]


@pytest.mark.usefixtures("own_rows")
def test_a_reason_and_a_rule_are_one_row_each(
    project: Callable[[str], pytest.Pytester], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(
        """
        def body(rank):
            pass

        def test_step(distbench):
            distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}})
        """
    )
    with (made.path / "conftest.py").open("a") as file:
        file.write("\n" + example("REASONS["))
    assert made.runpytest_inprocess("--distbench-update", "--distbench-launches=5").ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.2")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made.path / "summary.md"))
    result = made.runpytest_inprocess()

    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "step -80.0 %: nobody is that fast",
            "!  test_step[[]ws2]  step *",
            "* metric* (1 regressed*), * launch* in *",
            "::error file=test_it.py,line=*,title=test_step[[]ws2]::step -80.0 *",
        ]
    )
    assert "| regressed | -80.0 % | step | test_step[ws2] |" in (made.path / "summary.md").read_text()


REMARK = """
    def during(self, plan, hosting):
        told = "the network after it: 762 Mbit/s, wanted 923"
        return nullcontext(lambda record: replace(record, remarks=[*record.remarks, told]))
"""
NOT_RUN = """
    def during(self, plan, hosting):
        raise AroundUnavailable("network 1gbit: other work keeps this machine busy")
"""


@pytest.mark.parametrize(
    ("method", "outcome"),
    [(REMARK, "passed"), (NOT_RUN, "skipped")],
    ids=["a slow probe", "a network that is not run"],
)
def test_a_warning_about_the_machine_fails_under_a_filter_that_names_it_alone(
    pytester: pytest.Pytester, method: str, outcome: str
) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.makeconftest(
        f"""
from contextlib import nullcontext

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import AROUND

class Busy:
    def conditions(self, request):
        return {{}}

    def close(self):
        pass
{method}
AROUND["busy"] = lambda setup: Busy()
"""
    )
    pytester.makepyfile(
        test_it="""
        def body(rank):
            pass

        def test_ranks(distbench):
            distbench.run(body, params={"stand_in": {"step": 0.02}})
        """
    )
    command = ("-p", "pytest_distbench.testing", "--distbench-launcher=stand-in", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*command)
    result.assert_outcomes(**{outcome: 1}, warnings=1)

    strict = pytester.runpytest_subprocess(*command, "-W", "error::pytest_distbench.errors.DistbenchWarning")
    strict.assert_outcomes(failed=1)
    quiet = pytester.runpytest_subprocess(*command, "-W", "ignore")
    quiet.assert_outcomes(**{outcome: 1})
