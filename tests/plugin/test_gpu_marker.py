"""Which GPUs a test needs, on machines that are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.nvml import HOSTS, Card, Host, h100s, made_up
from support.projects import Project, run

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.plugin.gpu_marker import gpu_need

TEST = """
    import pytest

    P = {"stand_in": {"count!exact": 7}}

    def body(rank):
        pass

    @pytest.mark.gpu(MARKER)
    def test_on_gpu(distbench):
        assert (distbench.device, distbench.backend) == ("cuda", "nccl")
        distbench.run(body, params=P)

    @pytest.mark.cpu
    def test_on_cpu(distbench):
        assert (distbench.device, distbench.backend) == ("cpu", "gloo")
        distbench.run(body, params=P)
"""


@pytest.mark.parametrize(
    ("host", "marker", "reason"),
    [
        (Host(cards=h100s(2)), "min_memory='80GiB'", ""),
        (Host(cards=h100s(2)), "min_memory='90GiB'", "*needs GPUs with 90 GiB; GPU 0 has 79.65 GiB*"),
        (Host(cards=h100s(2)), "capability='9.0', link='nvlink'", ""),
        (Host(cards=h100s(2)), "capability='10.0'", "*needs compute capability 10.0; GPU 0 has 9.0*"),
        (HOSTS["4xL40S"], "link='nvlink'", "*needs NVLink between its GPUs; GPU 0 and GPU 1 have pcie*"),
        (
            Host(cards=[Card(name="GB10", uuid=f"GPU-{i}", bus=i, memory_bytes=None) for i in range(2)]),
            "min_memory='1GiB'",
            "*needs GPUs with 1 GiB; GPU 0 does not tell*",
        ),
    ],
)
def test_a_test_runs_on_the_gpus_that_it_needs(
    project: Project, driver: Callable[[Host], None], host: Host, marker: str, reason: str
) -> None:
    made = project(TEST.replace("MARKER", marker))
    driver(host)
    result = run(made, "--gpu", "--world-size=2", "-rs", "-k", "on_gpu")

    result.assert_outcomes(passed=int(not reason), skipped=int(bool(reason)))
    if reason:
        result.stdout.fnmatch_lines([reason])


@pytest.mark.parametrize(
    ("sold", "told_mib"),
    [("80GiB", 81559), ("40GiB", 40536), ("48GiB", 46068), ("24GiB", 23028), ("16GiB", 15360), ("141GiB", 143771)],
)
def test_a_product_has_the_memory_that_it_is_sold_with(sold: str, told_mib: int) -> None:
    """H100, A100, L40S, A10, T4 and H200 as the driver tells of them."""
    card = Card(name="", uuid="GPU-1", bus=1, memory_bytes=told_mib * 2**20)
    with made_up(Host(cards=[card])):
        found = read_gpus({})

    assert gpu_need([pytest.mark.gpu(min_memory=sold).mark]).obstacle(found, 1) == ""
    more = f"{int(sold.removesuffix('GiB')) * 5 // 4}GiB"
    assert "needs GPUs with" in gpu_need([pytest.mark.gpu(min_memory=more).mark]).obstacle(found, 1)


@pytest.mark.parametrize("value", [40, "40", "0", "4KiB"])
def test_a_number_without_its_unit_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"wanted a size such as '40GiB', or at least 1048576 bytes"):
        gpu_need([pytest.mark.gpu(min_memory=value).mark])


def test_a_test_on_the_cpu_stays_there_and_is_stored_under_its_class(
    project: Project, driver: Callable[[Host], None]
) -> None:
    made = project(TEST.replace("MARKER", ""))
    driver(Host(cards=h100s(2)))
    run(made, "--gpu", "--world-size=2", "--distbench-update").assert_outcomes(passed=2)

    stored = sorted(
        path.relative_to(made.path / "baselines").parts for path in (made.path / "baselines").rglob("*.json")
    )
    assert [(parts[0].startswith("cpu-"), parts[-2], parts[-1]) for parts in stored] == [
        (True, "test_on_cpu", "ws2.gloo.stand-in.json"),
        (False, "test_on_gpu", "ws2.nccl.stand-in.json"),
    ]
    again = run(made, "--gpu", "--world-size=2", "--distbench-prune")
    again.assert_outcomes(passed=2)
    assert "2 metrics" in again.stdout.str()
    assert len(list((made.path / "baselines").rglob("*.json"))) == 2
    run(made, "-k", "on_cpu").assert_outcomes(passed=1)  # without --gpu it is the same case
