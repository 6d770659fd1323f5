"""Ranks with their own networks: they use them, nothing is left of them, and injected faults are found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import RunInside
from support.networks import WITHOUT_PRIVILEGES, why_no_networks
from support.processes import LIMIT_S, wait_for, working_in

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

SUITE = """
    import os
    import socket
    import subprocess

    import pytest


    def look(rank):
        import torch.distributed as dist

        assert os.environ["MASTER_ADDR"] == "10.78.0.10"
        found = subprocess.check_output(["ip", "-brief", "-4", "address"], text=True)
        host = rank.rank * rank.params["hosts"] // rank.world_size
        assert f"10.78.0.{10 + host}/16" in found, found
        assert {line.split()[0].partition("@")[0] for line in found.splitlines()} <= {"lo", "eth0", "under0"}
        assert (int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])) == (host, rank.params["hosts"])
        assert int(os.environ["LOCAL_WORLD_SIZE"]) == rank.world_size // rank.params["hosts"]
        assert int(os.environ["LOCAL_RANK"]) == rank.rank % int(os.environ["LOCAL_WORLD_SIZE"])
        value = rank.sum_over_ranks(rank.rank)
        assert value == rank.world_size * (rank.world_size - 1) / 2
        rank.record("sum", value, better="info")


    def fails(rank):
        raise ValueError("it does")


    @pytest.mark.network("1gbit", delay="1ms")
    def test_looks(distbench):
        distbench.check(look, params={"hosts": 2}, world_size=2)


    @pytest.mark.network("100mbit,overlay,hosts=2")
    def test_shares(distbench):
        distbench.check(look, params={"hosts": 2}, world_size=4)


    @pytest.mark.network("100mbit")
    def test_fails(distbench):
        distbench.check(fails, world_size=2)


    @pytest.mark.network("100mbit")
    def test_script(distbench):
        distbench.run("script.py", world_size=2)


    @pytest.mark.network("100mbit", hosts=2)
    def test_cannot_be_shared(distbench):
        distbench.check(look, world_size=3)


    def test_command(distbench):
        distbench.run(["true"], network="100mbit")


    def test_variable(distbench):
        distbench.check(look, env={"GLOO_SOCKET_IFNAME": "lo"}, network="100mbit")


    def breaks(rank):
        import signal

        [holder] = [
            int(pid)
            for pid in os.listdir("/proc")
            if pid.isdecimal() and f"network_hosts\\0{rank.world_size}\\0" in open(f"/proc/{pid}/cmdline").read()
        ] if rank.rank == 0 else [None]
        if holder:
            os.kill(holder, signal.SIGKILL)
        raise ValueError("mine")


    def test_breaks(distbench):
        distbench.check(breaks, network="50mbit", world_size=3)
"""
SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
dist.destroy_process_group()
"""


def need(text: str = "unlimited") -> None:
    if why := why_no_networks(text):
        pytest.skip(f"not run: {why}")


def cases(folder: Path) -> dict[str, Any]:
    results = json.loads((folder / "run.json").read_text())["results"]
    return {result["case"]["test"].partition("::")[2]: result for result in results}


@pytest.mark.parametrize("launcher_name", ["warm", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_ranks_are_hosts_of_the_network_and_of_no_other(
    launcher_name: str, pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    need("1gbit,delay=1ms")
    pytester.makepyfile(test_real=SUITE, script=SCRIPT)
    result = run_inside("--world-size=4", f"--distbench-launcher={launcher_name}", "--distbench-json=run.json")

    result.assert_outcomes(passed=3, failed=5)
    result.stdout.fnmatch_lines(
        [
            "launch 1 on 2 ranks: * raised ValueError: it does",
            "*network '100mbit,hosts=2': 3 ranks cannot be shared evenly by 2 hosts*",
            "*the network 100mbit needs ranks that the plugin starts, and a command starts its processes itself*",
            "*env sets GLOO_SOCKET_IFNAME, which the network 100mbit sets in each rank itself*",
            "launch 1 on 3 ranks: rank ? raised ValueError: mine",
        ]
    )
    found = cases(pytester.path)
    assert found["test_looks"]["case"]["conditions"]["around"] == {"network": "1gbit,delay=1ms"}
    measured = {m["name"]: m["value"] for m in found["test_looks"]["launches"][0]["measurements"]}
    assert measured["network_round_trip"] >= 0.002
    assert 0 < measured["network_rate"] < 125e6
    assert found["test_script"]["launches"][0]["outcome"] == "passed"


def test_an_ordinary_user_has_it_too(pytester: pytest.Pytester) -> None:
    need()
    pytester.makepyfile(test_real=SUITE, script=SCRIPT)
    command = [*WITHOUT_PRIVILEGES, sys.executable, "-m", "pytest", "-k", "looks or script", "--world-size=2", "-rs"]
    ended = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True)

    if "no network namespace" in ended.stdout:
        pytest.skip("not run: this machine gives an ordinary user no namespaces")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_nothing_is_left_of_a_run_that_is_ended(number: signal.Signals, pytester: pytest.Pytester) -> None:
    need("100mbit,delay=1ms")
    pytester.makepyfile(
        test_hangs="""
        import time

        def sleeps(rank):
            import os
            open(os.path.join(rank.params["folder"], f"begun{rank.rank}"), "w").close()
            time.sleep(1000)

        def test_hangs(distbench, request):
            folder = str(request.config.rootpath)
            distbench.check(sleeps, params={"folder": folder}, network="100mbit,delay=1ms")
        """
    )
    mark = f"NETWORK_TEST={pytester.path.name}"
    command, variables = [sys.executable, "-m", "pytest", "--world-size=2"], {**os.environ, **dict([mark.split("=")])}
    with (pytester.path / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=pytester.path, env=variables, stdout=output, stderr=output)
    try:
        wait_for(lambda: (pytester.path / "begun1").exists() or process.poll() is not None, limit_s=LIMIT_S / 3)
        assert process.poll() is None, (pytester.path / "output").read_text()
        process.send_signal(number)
        process.wait(LIMIT_S / 3)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not marked(mark) and not working_in(pytester.path), limit_s=LIMIT_S / 3)


def marked(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


INJECTING = """
    import contextlib

    import pytest
    from support.networks import slow_down, slow_link

    from pytest_distbench.run.kinds import AROUND


    class Injected:
        @contextlib.contextmanager
        def during(self, plan, hosting):
            INJECT(plan)
            yield lambda record: record
            restore(plan)

        def conditions(self, request):
            return {}

        def close(self):
            pass


    def restore(plan):
        for place in set(plan.namespaces):
            slow_down(place, "100mbit")


    def half_link(plan):
        slow_link(plan.namespaces[0], "10.78.0.12", "50mbit", "100mbit")


    def half_host(plan):
        slow_down(plan.namespaces[2], "50mbit")


    def slower_overlay(plan):
        if "overlay" in plan.chosen["network"]:
            for host in range(plan.world_size):
                slow_down(plan.namespaces[host], "60mbit")


    INJECT = {fault}
    AROUND["injected"] = lambda setup: Injected()


    def pytest_unconfigure():
        del AROUND["injected"]
"""
LINKS = """
    import pytest

    @pytest.mark.network("100mbit")
    @pytest.mark.distbench(tolerance=0.15)
    def test_links(communication):
        communication.links(pattern="one-way", bandwidth_bytes=1 << 15, iterations=9)
"""


def inject(pytester: pytest.Pytester, name: str) -> None:
    pytester.makeconftest(INJECTING.replace("{fault}", name))


def regressed(folder: Path) -> list[str]:
    """Metrics that became worse, with the case's name."""
    results = json.loads((folder / "run.json").read_text())["results"]
    return [
        f"{result['case']['id']} {verdict['metric']}"
        for result in results
        for verdict in result["verdicts"]
        if verdict["kind"] == "regressed"
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "links", "named"),
    [
        ("half_link", [(0, 2)], "rank 0 to rank 2 (host0 to host2): this link is slow (bandwidth of 6 links)"),
        ("half_host", [(2, 0), (2, 1)], "rank 2 (host2): every link from this rank is slow (bandwidth of 6 links)"),
    ],
)
def test_what_carries_half_is_named_and_nothing_else(
    name: str, links: list[tuple[int, int]], named: str, pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    need("100mbit")
    pytester.makepyfile(test_links=LINKS)
    options = ["--world-size=3", "--distbench-confirm=off"]
    run_inside(*options, "--distbench-update=new", "--distbench-launches=3").assert_outcomes(passed=1)
    inject(pytester, name)
    result = run_inside(*options, "--distbench-json=run.json")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([named])
    wanted = [f"ws3 bandwidth[from={source},to={target}]" for source, target in links]
    assert [line for line in regressed(pytester.path) if "bandwidth" in line] == wanted


OVERLAY = """
    import pytest

    @pytest.mark.parametrize("net", ["100mbit", "100mbit,overlay"])
    @pytest.mark.distbench(tolerance=0.15)
    def test_sweep(collective_sweep, net):
        collective_sweep("all_reduce", sizes=[1 << 18, 1 << 19], network=net)
"""


@pytest.mark.nightly
def test_an_overlay_that_became_slower_is_red_and_its_network_is_not(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    need("100mbit,overlay")
    pytester.makepyfile(test_overlay=OVERLAY)
    options = ["--world-size=2", "--distbench-confirm=off"]
    run_inside(*options, "--distbench-update=new", "--distbench-launches=5").assert_outcomes(passed=2)
    inject(pytester, "slower_overlay")
    result = run_inside(*options, "--distbench-json=run.json")

    result.assert_outcomes(passed=1, failed=1)
    assert {line.split(" latency")[0] for line in regressed(pytester.path)} == {"100mbit,overlay-ws2"}
