"""Runs that are killed, interrupted, starved of disk or crowded: nothing is left behind and nothing stored is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.launching import RunInside
from support.processes import LIMIT_S, wait_for, working_in

from pytest_distbench.machine.locks import alone_on_this_host
from pytest_distbench.plugin.progress import TERMINATED
from pytest_distbench.store.baselines import read_file

pytestmark = pytest.mark.spawn

LONG = """
    import time

    def body(rank):
        open(f"up{rank.rank}", "w").close()
        time.sleep(1000)

    def test_long(distbench):
        distbench.run(body)
"""

ESCAPES = """
    import contextlib, os, signal, subprocess, sys, time

    def body(rank):
        sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
        subprocess.Popen(sleeper, env={}, start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        open(f"up{rank.rank}", "w").close()
        for fd in os.listdir("/proc/self/fd"):  # but what gloo polls: it would abort before this stops
            with contextlib.suppress(OSError):
                if int(fd) > 2 and "anon_inode" not in os.readlink("/proc/self/fd/" + fd):
                    os.close(int(fd))
        os.kill(os.getpid(), signal.SIGSTOP)

    def test_long(distbench):
        distbench.run(body)
"""

STORES = """
    import pytest

    def body(rank):
        rank.record("answer", 42, better="exact")

    @pytest.mark.parametrize("case", range(3))
    def test_{name}(distbench, case):
        distbench.run(body, params={{"case": case}})
"""

HALTS = """
    import os, time

    def body(rank):
        rank.record("answer", 42, better="exact")

    def halts(rank):
        body(rank)
        if rank.launch == 1 and not os.path.exists("go"):
            open(f"up{rank.rank}", "w").close()
            time.sleep(1000)

    def test_first(distbench):
        distbench.run(body)

    def test_second(distbench):
        distbench.run(body, name="whole")
        distbench.run(halts)

    def test_third(distbench):
        distbench.run(body)
"""

MADE_UP = ("-p", "pytest_distbench.testing", "--distbench-launcher=stand-in")

Pytest = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pytest]:
    """Start pytest in the test's folder, with run directories there too; stop it if the test has not."""
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pytest", *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield run
    for process in started:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Make a file system of its own, of one MiB or read-only."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"this user may not mount a tmpfs: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def sockets_and_plans(folder: Path) -> list[Path]:
    """What is left below a folder of a launch in flight; whoever cleans up may do so meanwhile."""
    files = [Path(where, name) for where, _, names in os.walk(folder) for name in names]  # passes over what vanishes
    return [file for file in files if file.is_socket() or file.name == "plan.json"]


def both_up(folder: Path) -> bool:
    return all((folder / f"up{rank}").exists() for rank in (0, 1))


@pytest.mark.parametrize(
    ("number", "launcher_name", "code"),
    [
        (signal.SIGKILL, "warm", -signal.SIGKILL),
        (signal.SIGINT, "warm", pytest.ExitCode.INTERRUPTED),
        pytest.param(signal.SIGTERM, "warm", TERMINATED, marks=pytest.mark.nightly),
        pytest.param(signal.SIGKILL, "torchrun", -signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, "torchrun", pytest.ExitCode.INTERRUPTED, marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, "torchrun", TERMINATED, marks=pytest.mark.nightly),
    ],
)
def test_a_run_ended_from_outside_leaves_no_process_socket_or_plan(
    pytester: pytest.Pytester, start: Pytest, number: signal.Signals, launcher_name: str, code: int
) -> None:
    """Not even where ranks are stopped, have closed their files, and have children of other sessions."""
    pytester.makepyfile(test_long=ESCAPES)
    process = start("--distbench-launcher", launcher_name)
    wait_for(lambda: both_up(pytester.path), process)
    process.send_signal(number)

    assert process.wait(LIMIT_S) == code
    assert number == signal.SIGKILL or not list((pytester.path / "tmp").glob("distbench-*/"))
    wait_for(lambda: not sockets_and_plans(pytester.path))
    wait_for(lambda: not working_in(pytester.path))


@pytest.mark.parametrize(
    "is_of_worker", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["the controller", "the worker"]
)
def test_a_run_on_workers_that_gets_sigterm_leaves_nothing(
    pytester: pytest.Pytester, start: Pytest, *, is_of_worker: bool
) -> None:
    pytester.makepyfile(test_long=LONG)
    process = start("-n", "1")
    wait_for(lambda: both_up(pytester.path), process)
    [worker] = psutil.Process(process.pid).children()
    (worker if is_of_worker else process).send_signal(signal.SIGTERM)

    assert process.wait(LIMIT_S) != 0
    wait_for(lambda: not working_in(pytester.path))
    assert not list((pytester.path / "tmp").glob("distbench-*/"))


def test_an_update_that_was_interrupted_is_continued(pytester: pytest.Pytester, start: Pytest) -> None:
    """Whole tests are stored, each as it ends; a case that was half recorded is recorded again."""
    pytester.makepyfile(test_halts=HALTS)
    process = start("--distbench-update=new")
    wait_for(lambda: both_up(pytester.path), process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_S)
    after_first = {path.parent.name: path.read_bytes() for path in pytester.path.rglob("baselines/**/*.json")}
    (pytester.path / "go").touch()
    again, _ = start("--distbench-update=new").communicate(timeout=LIMIT_S)
    stored = [read_file(path) for path in pytester.path.rglob("baselines/**/*.json")]

    assert list(after_first) == ["test_first"], output
    assert "Terminated: SIGTERM interrupted the run" in output
    assert "interrupted: 1 case is stored, and nothing of the test that was running; 1 was to follow" in output
    assert "continue with:  pytest --distbench-update=new" in output
    assert "3 new, 0 kept" in again, again
    assert sorted(f"{file.test.partition('::')[2]}[{file.key}]" for file in stored) == [
        "test_first[ws2.gloo.warm]",
        "test_second[ws2.gloo.warm]",
        "test_second[ws2:whole.gloo.warm]",
        "test_third[ws2.gloo.warm]",
    ]
    assert {len(file.entry.metrics["answer"]) for file in stored} == {2}
    assert after_first["test_first"] in [path.read_bytes() for path in pytester.path.rglob("baselines/**/*.json")]


def test_a_full_disk_under_the_run_directory_is_reported(
    pytester: pytest.Pytester, start: Pytest, tiny_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tiny_disk("size=1m")
    monkeypatch.setenv("TMPDIR", str(disk))
    pytester.makepyfile(
        """
        def fills(rank):
            rank.barrier()
            if rank.rank == 1:
                with open(rank.data_dir / "fill", "wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))

        def body(rank):
            rank.record("one", 1, better="exact")

        def test_fills(distbench):
            distbench.run(fills)

        def test_after(distbench):
            distbench.run(body)
        """
    )
    output, _ = start().communicate(timeout=LIMIT_S)

    assert re.search(r"launch 1 on 2 ranks: rank [01] (raised|failed: ).*No space left on device", output), output
    assert "2 failed" in output
    assert "INTERNALERROR" not in output


@pytest.mark.parametrize(("options", "text"), [("ro", "Read-only file system"), ("size=4k", "No space left on device")])
def test_baselines_that_cannot_be_written_fail_the_update_and_stay_as_they_are(
    pytester: pytest.Pytester,
    start: Pytest,
    tiny_disk: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    text: str,
) -> None:
    """The disk is real; what is to be written on it may be made up."""
    disk = tiny_disk(options)
    monkeypatch.setenv("DISTBENCH_STAND_IN", '{"answer!exact": 42}')
    pytester.makepyfile(test_stores=STORES.format(name="stores"))
    process = start(*MADE_UP, "--distbench-update", "--distbench-launches=1", f"--distbench-baselines={disk}")
    output, _ = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 1
    assert text in output
    assert "the baseline was not written" in output
    assert all(read_file(path).entry.metrics for path in disk.rglob("*.json"))  # what fitted is whole


def test_two_runs_update_one_folder_at_once(
    pytester: pytest.Pytester, start: Pytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is real; what is stored in it may be made up."""
    monkeypatch.setenv("DISTBENCH_STAND_IN", '{"answer!exact": 42}')
    pytester.makepyfile(test_stores=STORES.format(name="stores"))
    options = [*MADE_UP, "--distbench-update", "--distbench-launches=1"]
    first, second = start(*options, "-k", "0 or 1"), start(*options, "-k", "1 or 2")
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in (first, second)]
    after = start(*MADE_UP, "--distbench-no-baseline=fail")
    output, _ = after.communicate(timeout=LIMIT_S)

    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert "3 passed" in output


@pytest.mark.parametrize("arguments", [("-q",), ("-n", "1", "-q")], ids=" ".join)
def test_who_waits_for_another_run_says_so_in_time_and_names_it(
    pytester: pytest.Pytester, start: Pytest, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(pytester.path / "tmp"))
    pytester.makepyfile(test_stores=STORES.format(name="stores"))
    with alone_on_this_host(on_wait=pytest.fail):
        process = start(*arguments, "--distbench-update")
        assert process.stdout is not None
        line = next((line for line in process.stdout if "waiting for" in line), "")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)

    told = re.search(r"waiting for another measurement on this host: pid (\d+) \(", line)
    assert told is not None
    assert int(told[1]) in (os.getpid(), os.getppid())  # that of the run, where this is one of its workers


def test_a_rank_gets_the_terminal(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def body(rank):
            answer = 41 + rank.rank
            breakpoint()
            rank.barrier()

        def test_it(distbench):
            distbench.run(body)
        """
    )
    command = [sys.executable, "-m", "pytest", "--distbench-attach", "1"]
    done = subprocess.run(command, input="p answer\nc\n", capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert "(Pdb) 42" in done.stdout
    assert "rank 1 had the terminal: nothing was judged or stored" in done.stdout
    assert done.returncode == 0


def test_a_breakpoint_without_a_terminal_says_what_to_do(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(
        """
        def body(rank):
            if rank.rank == 1:
                breakpoint()

        def test_it(distbench):
            distbench.run(body)
        """
    )
    output = run_inside().stdout.str()

    assert "breakpoint() in rank 1, which has no terminal: run it again with --distbench-attach 1" in output


def test_output_is_streamed_with_the_rank_in_front(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(
        r"""
        import time

        def body(rank):
            print("first line\x1b[2J")
            print("no line end", end="")
            rank.record("one", 1, better="exact")

        def test_it(distbench):
            distbench.run(body)
        """
    )
    output = run_inside("-s").stdout.str()

    for rank in (0, 1):
        assert f"[rank {rank}] first line\\x1b[2J\n" in output
        assert f"[rank {rank}] no line end\n" in output


def test_the_run_directory_of_a_failed_launch_is_private_and_stays(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import os, stat

        def body(rank):
            run = rank.data_dir.parent
            modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (run, run / "launch1")]
            assert modes == [0o700, 0o700]
            raise ValueError("keep the logs")

        def test_it(distbench):
            distbench.run(body)
        """
    )
    (pytester.path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(pytester.path / "tmp"))

    assert "keep the logs" in run_inside().stdout.str()
    assert len(list((pytester.path / "tmp").glob("distbench-*/"))) == 1


@pytest.mark.usefixtures("closed_doors")
@pytest.mark.parametrize("launcher_name", ["warm", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_stores_and_sockets_listen_on_loopback_only(
    pytester: pytest.Pytester, start: Pytest, launcher_name: str
) -> None:
    pytester.makepyfile(
        train="""
        import time
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        time.sleep(0.5)
        """,
        test_it="""
        import time

        def body(rank):
            rank.barrier()
            time.sleep(0.5)

        def test_body(distbench):
            distbench.measure(body)

        def test_script(distbench):
            distbench.run("train.py")
        """,
    )
    output, _ = start("--distbench-launcher", launcher_name).communicate(timeout=LIMIT_S)
    assert "2 passed" in output


CLEAN = """
    import atexit, tempfile
    from multiprocessing import shared_memory
    from pathlib import Path

    FOLDER = tempfile.TemporaryDirectory(prefix="body-")
    KEPT = []

    def body(rank):
        KEPT.append(shared_memory.SharedMemory(create=True, size=1000))
        seen = [KEPT[0].name, f"sem.{rank.data_dir.parent.name}-*"]
        Path(f"seen{rank.rank}-{rank.launch}").write_text("\\n".join(seen))
        atexit.register(Path(f"handled{rank.rank}-{rank.launch}").touch)
        rank.record("answer", 42, better="exact")

    def test_clean(distbench):
        distbench.run(body, launches={launches})
"""


@pytest.mark.parametrize(
    ("launcher_name", "launches"), [("warm", 2), pytest.param("torchrun", 1, marks=pytest.mark.nightly)]
)
def test_a_green_run_leaves_no_semaphore_shared_memory_or_folder(
    start: Pytest, pytester: pytest.Pytester, launcher_name: str, launches: int
) -> None:
    """Two launches where one process starts both; torchrun is another one for each."""
    pytester.makepyfile(CLEAN.replace("{launches}", str(launches)))
    process = start("--world-size=2", f"--distbench-launcher={launcher_name}")
    out, _ = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0, out
    seen = [line for path in pytester.path.glob("seen*") for line in path.read_text().splitlines()]
    assert len(seen) >= 4 * launches
    assert [path for pattern in seen for path in Path("/dev/shm").glob(pattern)] == []
    assert len(list(pytester.path.glob("handled*"))) == len(seen) / 2
    left = {path.name for path in (pytester.path / "tmp").iterdir() if path.is_dir()}
    assert {name for name in left if not name.startswith("torchinductor_")} == set()  # torch's cache, one for all runs


LEAVES_A_THREAD = """
    import threading, time

    def body(rank):
        threading.Thread(target=time.sleep, args=(1000,), name="poll").start()
        rank.record("answer", 42, better="exact")

    def test_leaves(distbench):
        distbench.run(body)
"""


def test_a_thread_that_keeps_a_rank_is_a_warning_of_the_test(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(LEAVES_A_THREAD)
    out = run_inside("--world-size=2", "-W", "default").stdout.str()

    assert "1 passed, 1 warning" in out
    assert "DistbenchWarning: rank 0, 1: threads it had started still ran (poll) after 10 s, and were ended" in out


ENDS_LIKE_A_SCRIPT = """
    import atexit, os, sys, threading, time, torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    class Net(torch.nn.Linear):
        pass

    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    net = Net(2, 2)
    log = open(f"log{rank}.txt", "w")
    log.write("all of it")
    atexit.register(torch.save, net, f"net{rank}.pt")
    saving = dcp.async_save({"net": net.state_dict()}, checkpoint_id="checkpoint")
"""


@pytest.fixture
def script_with_an_end(pytester: pytest.Pytester) -> Iterator[str]:
    """The name of its test; once that has run, all that the script leaves to its end must be done."""
    pytester.makepyfile(
        train=ENDS_LIKE_A_SCRIPT, test_it="def test_it(distbench):\n    distbench.run('train.py', cwd='.')"
    )
    yield "test_it.py"
    assert {path.read_text() for path in pytester.path.glob("log?.txt")} == {"all of it"}
    assert len({path.stat().st_size for path in pytester.path.glob("net?.pt")}) == 1
    assert all(zipfile.is_zipfile(path) for path in pytester.path.glob("net?.pt"))
    assert sorted(path.name for path in (pytester.path / "checkpoint").iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp",
    ]  # fmt: skip


def test_what_a_script_leaves_to_its_end_is_done(script_with_an_end: str, run_inside: RunInside) -> None:
    assert run_inside("--world-size=2", "-W", "default", script_with_an_end).ret == 0  # a warning names the files


IN_A_FULL_SHM = 'mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full && exec "$@"'


@pytest.mark.nightly
def test_six_tests_on_two_xdist_workers(pytester: pytest.Pytester, start: Pytest) -> None:
    pytester.makepyfile(test_stores=STORES.format(name="stores").replace("range(3)", "range(6)"))
    output, _ = start("-n", "2", "--distbench-json=run.json").communicate(timeout=LIMIT_S)

    assert "6 passed" in output


def test_options_from_the_environment_reach_the_run_and_not_the_ranks(
    pytester: pytest.Pytester, start: Pytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} -n 1 --world-size 1")
    pytester.makepyfile(test_stores=STORES.format(name="stores"))
    output, _ = start("-v").communicate(timeout=LIMIT_S)

    assert "3 passed" in output
    assert "ws1" in output


def test_a_system_time_that_jumps_ends_no_launch(pytester: pytest.Pytester, start: Pytest) -> None:
    """time.time() goes back and forth by a day in pytest and in every rank; CLOCK_MONOTONIC does not."""
    jump = """
        import itertools, time
        real, days = time.time, itertools.cycle((0, -86400, 86400))
        time.time = lambda: real() + next(days)
    """
    pytester.makeconftest(jump)
    pytester.makepyfile(jump=jump, test_stores="    import jump\n" + STORES.format(name="stores"))
    output, _ = start("--distbench-timeout=60").communicate(timeout=LIMIT_S)

    assert "3 passed" in output


def test_a_script_that_calls_os_exit_is_reported_soon(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(
        train="import os\nos._exit(0)",
        test_it="def test_it(distbench):\n    distbench.run('train.py')",
    )
    out = run_inside("--world-size=2", "test_it.py").stdout.str()

    assert "exit code 0 without a report, by os._exit()?" in out
    assert "did not notice" not in out


def test_a_full_dev_shm_is_no_hindrance(pytester: pytest.Pytester, tiny_disk: Callable[[str], Path]) -> None:
    tiny_disk("size=1m")  # skips where this user may not mount
    pytester.makepyfile(STORES.format(name="a"))
    command = [sys.executable, "-m", "pytest", "-x", "--world-size=2"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", IN_A_FULL_SHM, "sh", *command], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
