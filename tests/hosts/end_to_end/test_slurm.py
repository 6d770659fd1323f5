"""Ranks on the nodes of a real Slurm, whose hosts are namespaces of this one; pytest runs on its login node."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support import engine, slurm_cluster
from support.processes import wait_for
from support.repositories import git
from support.slurm_cluster import command_of, why_not

from pytest_distbench.store.files import read_run_record

pytestmark = [
    pytest.mark.spawn,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm here: {why_not()}"),
]

SRUN = (
    "srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none --mpi=none "
    "--kill-on-bad-exit=0 --wait=0 "
)
OTHERS = (f"{SRUN} {{command}}", f"{SRUN} {{torchrun}}")
SOME_FAULTS = (
    "cmd and (asserts or is_killed or aborts or hangs_in_c or stops_who or leaves_a_child or prints_everywhere "
    "or kills_the or rendezvous_in)"
)

SUITE = """
    import os, signal, socket, subprocess, sys, threading, time
    from pathlib import Path

    def measures(rank):
        import torch
        import torch.distributed as dist
        x = torch.ones(256)
        for _ in rank.timed("latency", warmup=1, iterations=5):
            dist.all_reduce(x)
        rank.record("sum", float(x.sum()), better="exact")
        rank.record("node", float(socket.gethostname().removeprefix("node")), reduce="sum")
        print("said on", socket.gethostname())

    def waits(rank):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        Path(rank.params["there"], f"up{rank.rank}").touch()
        time.sleep(1000)

    def when_all_wait(there, ranks, do):
        def wait_and_do():
            while len(list(Path(there).glob("up*"))) < ranks:
                time.sleep(0.05)
            do()
        threading.Thread(target=wait_and_do, daemon=True).start()

    def kill_a_node():
        Path(os.environ["DISTBENCH_TEST_SLURM"], "node2.dies").touch()

    def part_a_node():
        Path(os.environ["DISTBENCH_TEST_SLURM"], "node2.parts").touch()

    def wait_until_whole():
        while Path(os.environ["DISTBENCH_TEST_SLURM"], "node2.parts").exists():
            time.sleep(0.1)

    def kill_a_parent():
        lab = Path(os.environ["DISTBENCH_TEST_SLURM"])
        inside = ["nsenter", "--pid", "--mount", "--target", (lab / "node2.init").read_text()]
        subprocess.run([*inside, "pkill", "-KILL", "--oldest", "-f", "hosts.slurm"], check=True)

    def cancel_the_step():
        job = os.environ["SLURM_JOB_ID"]
        steps = subprocess.run(["squeue", "-h", "-s", "-j", job, "-o", "%i %j"], capture_output=True, text=True).stdout
        [step] = [line.split()[0] for line in steps.splitlines() if "python" in line]
        subprocess.run(["scancel", step], check=True)

    def cancel_the_job():
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=True)
"""

Cluster = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Runs pytest in an allocation of so many nodes, on a suite that begins with :data:`SUITE`."""

    def run(nodes: int, tests: str, *options: str, launcher: str = "slurm") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            in_cluster(tmp_path, nodes, tests, *options, launcher=launcher),
            cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


def in_cluster(folder: Path, nodes: int, tests: str, *options: str, launcher: str = "slurm") -> list[str]:
    (folder / "test_s.py").write_text(textwrap.dedent(SUITE) + textwrap.dedent(tests))
    pytest_ = [sys.executable, "-m", "pytest", "test_s.py", "-p", "no:cacheprovider", *_option(launcher)]
    return command_of(nodes, ["salloc", "-Q", f"--nodes={nodes}", *pytest_, *options])


def _option(launcher: str) -> list[str]:
    """The option that selects a launcher, or a template of a command."""
    return ["--distbench-launcher", launcher]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.nightly
def test_a_cluster_changes_nothing_of_this_machine() -> None:
    """However it is started: once its name, its network and its /etc/hosts were those of the cluster."""
    name, hosts = socket.gethostname(), Path("/etc/hosts").read_text()
    look = "hostname; tail -n 1 /etc/hosts"
    command = [sys.executable, slurm_cluster.__file__, "1", "--", "sh", "-c", look]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.splitlines() == ["head", "10.77.0.11 node1"]
    assert (socket.gethostname(), Path("/etc/hosts").read_text()) == (name, hosts)
    assert "br0" not in psutil.net_if_addrs()


SMOKE = pytest.param("slurm", marks=pytest.mark.thorough)
OF_OTHERS = [pytest.param(one, id=one.split()[-1], marks=pytest.mark.nightly) for one in OTHERS]


@pytest.mark.parametrize("launcher", [SMOKE, *OF_OTHERS])
def test_ranks_of_four_hosts_measure_and_their_numbers_and_output_come_back(
    cluster: Cluster, tmp_path: Path, launcher: str
) -> None:
    tests = """
        def test_it(distbench):
            distbench.run(measures)
    """
    done = cluster(4, tests, "--world-size=4", "--distbench-json=run.json", "--distbench-out=out", launcher=launcher)

    assert done.returncode == 0, done.stdout + done.stderr
    [launch] = read_run_record(tmp_path / "run.json").results[0].launches
    found = {measured.name: measured.value for measured in launch.measurements}
    assert (found["node"], found["sum"]) == (1 + 2 + 3 + 4, 256 * 4**6)
    logs = {path.name: path.read_text().split()[-1] for path in (tmp_path / "out" / "logs").rglob("rank*.log")}
    assert logs == {f"rank{rank}.log": f"node{rank + 1}" for rank in range(4)}


STEP = """
import json, os, sys
from pathlib import Path
from pytest_distbench.hosts.slurm import read_allocation
from pytest_distbench.hosts.slurm import start_step

found = read_allocation(os.environ)
tells = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + os.environ['SLURMD_NODENAME'], 'w'))"
step = start_step(
    found.nodes, lambda where: [sys.executable, "-c", tells, os.environ["THERE"]], gpus=found.gpus_per_node,
    variables=os.environ, log=Path(os.environ["THERE"] + "log"), session="s",
)
sys.exit(step.wait(60))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("of_the_job", "variables", "gpus"),
    [
        (["--ntasks-per-node=4", "--gpus-per-task=1"], {}, 4),
        (["--gpus-per-node=2", "--ntasks-per-gpu=1"], {}, 2),
        (["--gres=gpu:3", "--cpus-per-task=2"], {"SRUN_CPUS_PER_TASK": "2", "CUDA_VISIBLE_DEVICES": ""}, 3),
        (["--ntasks-per-node=2", "--exclusive"], {"SRUN_CPUS_PER_TASK": "1", "SLURM_EXACT": "1"}, 4),
        (["--ntasks-per-node=2"], {}, 0),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_step_has_all_that_the_job_has_on_a_node(
    tmp_path: Path, of_the_job: list[str], variables: dict[str, str], gpus: int
) -> None:
    """However the job says what one of its tasks gets."""
    given = [f"{name}={value}" for name, value in {**variables, "THERE": f"{tmp_path}/"}.items()]
    words = ["salloc", "-Q", "--nodes=2", *of_the_job, "env", *given, sys.executable, "-c", STEP]
    done = subprocess.run(
        command_of(2, words), env=environment(), capture_output=True, text=True, check=False, timeout=120
    )

    log = tmp_path / "log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    for node in ("node1", "node2"):
        told = json.loads((tmp_path / node).read_text())
        assert int(told.get("SLURM_GPUS_ON_NODE", 0)) == gpus
        assert told["SLURM_CPUS_ON_NODE"] == told["SLURM_JOB_CPUS_PER_NODE"].partition("(")[0]


@pytest.mark.nightly
def test_a_node_that_dies_is_named_and_the_next_test_runs(cluster: Cluster) -> None:
    tests = """
        def test_dies(distbench, tmp_path):
            when_all_wait(tmp_path, 2, kill_a_node)
            distbench.run(waits, params={"there": str(tmp_path)})

        def test_next(distbench):
            distbench.run(measures, world_size=1)
    """
    done = cluster(2, tests, "--world-size=2", "--distbench-timeout=200")

    assert "host node2: its relay " in done.stdout, done.stdout + done.stderr  # and not that the launch's time was over
    assert "1 failed, 1 passed" in done.stdout


@pytest.mark.nightly
def test_a_network_partition_is_reported_and_the_node_is_used_again_later(cluster: Cluster) -> None:
    tests = """
        def test_parts(distbench, tmp_path):
            when_all_wait(tmp_path, 2, part_a_node)
            distbench.run(waits, params={"there": str(tmp_path)})

        def test_next(distbench):
            distbench.run(measures, world_size=1)

        def test_back(distbench):
            wait_until_whole()
            distbench.run(measures)
    """
    done = cluster(2, tests, "--world-size=2", "--distbench-timeout=200")

    assert re.search(r"host node2: its relay has (been silent for|ended)", done.stdout), done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["cancel_the_step", "kill_a_parent"])
def test_a_node_whose_processes_are_ended_is_named_and_the_next_test_runs_on_all(cluster: Cluster, fault: str) -> None:
    tests = f"""
        def test_ended(distbench, tmp_path):
            when_all_wait(tmp_path, 2, {fault})
            distbench.run(waits, params={{"there": str(tmp_path)}})

        def test_next(distbench):
            distbench.run(measures)
    """
    done = cluster(2, tests, "--world-size=2", "--distbench-timeout=200", "--distbench-launches=1")

    assert re.search(r"the launcher failed: host node\d: its relay has ended", done.stdout), done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout


@pytest.mark.nightly
def test_ranks_on_several_nodes_are_another_case_than_those_of_one(cluster: Cluster, tmp_path: Path) -> None:
    tests = """
        @pytest.mark.world_size(1, 2, 4)
        def test_it(distbench):
            distbench.run(measures)
    """
    done = cluster(2, "import pytest\n" + textwrap.dedent(tests), "--world-size=4", "--distbench-update=new")

    assert done.returncode == 0, done.stdout + done.stderr
    stored = {path.name for path in (tmp_path / "baselines").rglob("ws*.json")}
    assert stored == {"ws1.gloo.slurm.json", "ws2%3A@nodes=2x1.gloo.slurm.json", "ws4%3A@nodes=2x2.gloo.slurm.json"}


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, None], ids=["Ctrl-C", "kill -9", "scancel"])
def test_a_pytest_that_is_ended_leaves_no_step(tmp_path: Path, number: signal.Signals | None) -> None:
    tests = f"""
        def test_long(distbench):
            Path("pid").write_text(str(os.getpid()))
            {"when_all_wait('.', 2, cancel_the_job)" if number is None else ""}
            distbench.run(waits, params={{"there": {str(tmp_path)!r}}})
    """
    words = in_cluster(tmp_path, 2, tests, "--world-size=2")
    at = words.index("salloc")
    script = (
        'set -m; "$@" & wait $!; '
        "for i in $(seq 100); do squeue -h -s -o %j | grep -q python || break; sleep 0.2; done; "
        "squeue -h -s -o %j > steps; pgrep -fc '[d]istbench.hosts|[d]istbench.worker' > left"
    )
    words = [*words[:at], "bash", "-c", script, "bash", *words[at:]]
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            if number is not None:
                wait_for(lambda: (tmp_path / "up1").exists() and (tmp_path / "up0").exists(), running, limit_s=60)
                [pid] = pids_of(tmp_path / "pid", running.pid)
                os.kill(pid, number)
            said = running.communicate(timeout=120)[0]
        finally:
            running.kill()

    assert (tmp_path / "up1").exists(), said
    assert (tmp_path / "left").read_text().strip() == "0", said
    assert "python" not in (tmp_path / "steps").read_text()


FIRST_SPACE = len(Path("/proc/self/status").read_text().partition("NSpid:")[2].partition("\n")[0].split()) + 1
"""Numbers that a process of the cluster, but not of one of its nodes, has here and in the spaces below."""


def pids_of(file: Path, above: int) -> list[int]:
    """The process id here of the one that has that of the file in the cluster's namespace, below this process."""
    wanted = file.read_text().strip()
    found = []
    for process in psutil.Process(above).children(recursive=True):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        spaces = status.partition("NSpid:")[2].partition("\n")[0].split()
        if len(spaces) == FIRST_SPACE and spaces[-1] == wanted:
            found.append(process.pid)
    return found


INTERLEAVED = """
    import work

    def works(rank):
        for _ in rank.timed("step", warmup=0, iterations=10):
            work.step()

    def test_step(distbench):
        distbench.run(works, tolerance=0.15)
"""


@pytest.mark.nightly
def test_a_suspicious_case_is_confirmed_on_the_same_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Slower code is red; the same code, where the baseline is of a machine that was faster, is not."""

    def commit(message: str) -> None:
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", message)

    def write(seconds: float, more: str = "") -> None:
        (tmp_path / "work.py").write_text(f"import time\n\ndef step():\n    time.sleep({seconds})\n{more}")

    write(0.02)
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    recorded = cluster(2, INTERLEAVED, "--world-size=2", "--distbench-update", "--distbench-launches=3")
    assert recorded.returncode == 0, recorded.stdout
    commit("baselines")

    write(0.04)
    slower = cluster(2, INTERLEAVED, "--world-size=2")
    assert slower.returncode == 1, slower.stdout
    assert re.search(r"step: interleaved A/B with \w+ \(baseline commit\): \+\d+", slower.stdout), slower.stdout

    write(0.02, more="# another comment\n")
    [path] = (tmp_path / "baselines").rglob("*.json")
    stored = json.loads(path.read_text())
    step = stored["entry"]["metrics"]["step"]
    for numbers, name in ((step, "launches"), (step["spread"], "minimum"), (step["spread"], "p95")):
        numbers[name] = [value / 4 for value in numbers[name]]
    path.write_text(json.dumps(stored))
    git(tmp_path, "stash", "--quiet", "--", "work.py")
    commit("baselines of a fast machine")
    git(tmp_path, "stash", "pop", "--quiet")
    same = cluster(2, INTERLEAVED, "--world-size=2")
    assert same.returncode == 0, same.stdout
    assert "the machine" in same.stdout, same.stdout


@pytest.mark.timeout(1300)
@pytest.mark.parametrize(
    ("launcher", "faults", "least"),
    [
        pytest.param("slurm", ["-m", "thorough", "-k", "slurm"], 8, marks=pytest.mark.thorough),
        pytest.param("slurm", ["-m", "nightly", "-k", "slurm"], 46, marks=pytest.mark.nightly),
        *(pytest.param(one, ["-m", "", "-k", SOME_FAULTS], 13, marks=pytest.mark.nightly) for one in OTHERS),
    ],
)
def test_a_fault_of_any_kind_is_detected_and_attributed(
    tmp_path: Path, launcher: str, faults: list[str], least: int
) -> None:
    """The list of conformance, in an allocation; of launchers that import torch for each launch a part of it."""
    folder = Path(__file__).parents[2] / "end_to_end"
    words = ["salloc", "-Q", "--nodes=2", sys.executable, "-m", "pytest", "-q", str(folder / "test_conformance.py")]
    report = tmp_path / "report.json"
    variables = {**environment(), "DISTBENCH_TEST_LAUNCHERS": launcher}
    if " " in launcher:
        variables |= {"DISTBENCH_TEST_LAUNCHERS": "cmd", engine.VARIABLE: launcher}
    more = [*faults, "-p", "no:cacheprovider", "--json-report", f"--json-report-file={report}", "--tb=short"]
    done = subprocess.run(
        command_of(2, [*words, *more]),
        cwd=folder.parents[1], env=variables, capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert json.loads(report.read_text())["summary"]["passed"] >= least
