"""Variables of the ranks as parameters of a test: in its id, in what is launched, and in what it is compared with.

gloo has no variable that changes what it sends, so that these tests have ranks read what a body, and a transport of
the tests' own, make of one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import RunInside

from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

PARAMETRIZED = """
    import os
    import pytest

    def body(rank):
        rank.record("is_ring", float(os.environ.get("NCCL_ALGO") == "Ring"), better="exact")
        rank.record("is_loud", float(os.environ.get("NCCL_DEBUG") == "WARN"), better="exact")

    @pytest.mark.parametrize("env", [{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}])
    def test_algorithm(distbench, env):
        distbench.run(body, env=env)

    @pytest.mark.parametrize("env", [{"A": "b"}])
    def test_of_somebody_else(env):
        pass
"""


def test_variables_are_part_of_the_id_and_of_the_launch_and_those_of_the_user_stay(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "CollnetChain")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    pytester.makepyfile(test_v=PARAMETRIZED.replace("\n    ", "\n"))
    result = run_inside("-v", "--distbench-json=run.json")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "test_v.py::test_algorithm[[]NCCL_ALGO=Ring-ws2] *",
            "test_v.py::test_algorithm[[]NCCL_ALGO=Tree,NCCL_PROTO=LL-ws2] *",
            "test_v.py::test_of_somebody_else[[]env0] *",
        ]
    )
    found = read_run_record(pytester.path / "run.json").results
    values = [{m.name: m.value for m in case.launches[0].measurements} for case in found]
    assert [(each["is_ring"], each["is_loud"]) for each in values] == [(1.0, 1.0), (0.0, 1.0)]


SWEPT = """
    import pytest

    def test_sweep(collective_sweep):
        both = collective_sweep("all_reduce", sizes=[64, 256], iterations=5, transport=["one", "other"], launches=1)
        assert [run.result.case.run for run in both] == ["one", "other"]

    def test_of_nccl(collective_sweep):
        collective_sweep("all_reduce", sizes=[64], transport=["ring", "tree"])
"""


def test_sweeps_by_several_transports_stand_side_by_side(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_distbench.commands.cli import main
    from pytest_distbench.workloads.protocol import TRANSPORTS

    for name in ("one", "other"):
        monkeypatch.setitem(TRANSPORTS, name, ({"gloo": {"MADE_UP": name}}, ()))
    pytester.makepyfile(test_v=SWEPT.replace("\n    ", "\n"))
    result = run_inside("-rs", "--distbench-json=run.json")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *not run: nccl can use 'ring', and gloo cannot choose"])
    table = Path("table.csv")
    assert main(["report", "run.json", "--table", "transports", "--format", "csv", "-o", str(table)]) == 0
    header, *rows = (line.split(",") for line in table.read_text().splitlines())
    assert header[-2:] == ["one_time_s", "other_time_s"]
    assert [row[header.index("message_bytes")] for row in rows] == ["64", "256"]
    assert all(float(cell) > 0 for row in rows for cell in row[-2:])
