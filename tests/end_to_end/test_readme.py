"""The examples of the README, docs/writing.md and docs/collectives.md run as they say; pages: ``test_pages.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.launching import RunInside
from support.projects import Project, run

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md").read_text() + (ROOT / "docs" / "writing.md").read_text()
COMMAND = ("--world-size", "2")


def example(part: str) -> str:
    """The Python example with this in it."""
    [found] = [block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if part in block]
    return str(found)


@pytest.mark.spawn
def test_the_example_runs_as_described(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_step=example("range(20)"),
        test_mine=example('rank.timed("latency"'),
        test_sweep=example("collective_sweep("),
    )
    result = pytester.runpytest_subprocess(*COMMAND, "-v", "-rs")

    result.stdout.fnmatch_lines(
        [
            "*test_mine?ws4? SKIPPED*",
            "*3 cases measured, nothing to compare with (N): test_mine?ws2?, test_step?ws2?, test_all_reduce?ws2?",
            "*not run: needs 4 ranks, 2 given*",
        ]
    )
    assert result.ret == 0


TRAIN = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")
    dist.destroy_process_group()
"""


@pytest.mark.spawn
def test_a_script_as_it_is_has_what_the_readme_names(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(train=TRAIN, test_train=example('distbench.run("train.py", read={"loss_curve": loss})'))
    run_inside(*COMMAND, "--distbench-json=run.json").assert_outcomes(passed=1)
    [case] = json.loads((pytester.path / "run.json").read_text())["results"]

    assert {"loss_curve", "fingerprint", "wall_time"} <= {verdict["metric"] for verdict in case["verdicts"]}
    assert "weights" in {measured["name"] for measured in case["launches"][0]["measurements"]}


@pytest.mark.spawn
def test_a_number_of_several_runs_and_the_phases_of_a_loop_are_as_described(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    pytester.makepyfile(test_scaling=example("def test_efficiency(distbench)"))
    result = run_inside(*COMMAND, "-v", "--distbench-launches=2", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["*nothing to compare with (N): test_step?ws2?, test_efficiency?ws2:efficiency?"])
    assert result.ret == 0
    cases = json.loads((pytester.path / "run.json").read_text())["results"]
    judged = {case["case"]["run"]: {v["metric"] for v in case["verdicts"]} for case in cases}
    assert {"step", "phase/step/forward"} <= judged[""]
    assert [metrics for metrics in judged.values() if "efficiency" in metrics] == [{"efficiency"}]
    [step] = [case for case in cases if not case["case"]["run"]]
    measured = {m["name"]: m for m in step["launches"][0]["measurements"]}
    assert measured["phase/step/forward"]["spread"]["n"] == 30
    assert measured["step"]["identity"] == {"layers": 1}
    assert (measured["phase/step/backward"]["better"], measured["phase/step/forward"]["better"]) == ("info", "lower")


PAGE = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text()


@pytest.mark.spawn
def test_each_shape_is_one_line_of_a_test(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    for name, example in re.findall(r"```python\n# (test_\w+)\.py\n(.*?)```", PAGE, re.DOTALL):
        pytester.makepyfile(**{name: example})
    result = run_inside("--world-size=2", "--distbench-json=run.json")

    assert result.ret == 0
    cases = json.loads((pytester.path / "run.json").read_text())["results"]
    judged = {case["nodeid"].rpartition("::")[2]: {v["metric"] for v in case["verdicts"]} for case in cases}
    assert len([name for name in judged["test_all_reduce[ws2]"] if name.startswith("latency")]) == 8
    assert len(judged["test_gradients[ws2]"] - {"fingerprint", "peak_memory"}) == 9
    assert {"communication_time", "compute_time", "both_time"} <= judged["test_next_to_computing[ws2]"]
    assert {"step_time[hook=fp16]", "gradient_error[hook=fp16]"} <= judged["test_half_precision[ws2]"]
    assert judged["test_cluster[ws2]"] >= {"latency[from=0,to=1]", "bandwidth[from=0,to=1]"}
    assert "gradient_bytes[hook=fp16]" in judged["test_half_precision[ws2]"]


def links(**slow_s: float) -> str:
    """Links between four simulated ranks; ``rank0_rank1=`` is the time of one, the others take 100 us."""
    times = {f"latency[from={i},to={j}]": slow_s.get(f"rank{i}_rank{j}", 1e-4) for j in range(4) for i in range(j)}
    return json.dumps(times)


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ({"rank1_rank3": 1e-3}, "rank 1 to rank 3: this link is slow (latency of 6 links)"),
        (
            {"rank0_rank2": 1e-3, "rank1_rank2": 1e-3, "rank2_rank3": 1e-3},
            "rank 2: every link of this rank is slow (latency of 6 links)",
        ),
    ],
)
def test_a_failure_names_who_became_slow(
    project: Project, monkeypatch: pytest.MonkeyPatch, slow: dict[str, float], text: str
) -> None:
    made = project("def body(rank):\n    pass\n\n\ndef test_links(distbench):\n    distbench.run(body)\n")
    monkeypatch.setenv("DISTBENCH_STAND_IN", links())
    run(made, "--distbench-update").assert_outcomes(passed=1)
    monkeypatch.setenv("DISTBENCH_STAND_IN", links(**slow))
    result = run(made)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*latency from rank ? to rank ? +900.0 %*", f"*{text}"])
