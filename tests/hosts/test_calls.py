"""What one command starts on several hosts, which call back and report what they are; the command is a fake."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.processes import wait_for

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.hosts import calls
from pytest_distbench.hosts.calls import SEES, Callers, NotCalled, addresses, describe_hosts, main
from pytest_distbench.hosts.relay import SECRET_VARIABLE, Caller
from pytest_distbench.launch.site import processes
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.record import replace

pytestmark = pytest.mark.spawn

DIAL, DESCRIBE = "pytest_distbench.hosts.relay", "pytest_distbench.hosts.calls"


@contextlib.contextmanager
def started(
    tmp_path: Path, does: str, *, count: int = 2, names: Sequence[str] = (), module: str = DIAL
) -> Iterator[Callers]:
    """What a shell script starts, whose words are what is to run on each host."""
    words = [f"{SEES}{tmp_path}"] if module == DESCRIBE else []
    made = Callers(
        lambda where, variables: ["sh", "-c", does, "sh", sys.executable, "-m", module, *where, *words],
        environment=os.environ,
        count=count,
        names=names,
        log=tmp_path / "log",
        session="s",
        advice="Are they up?",
    )
    try:
        yield made
    finally:
        made.kill()
        assert made.poll() is not None


def hosts_of(made: Callers, **wanted: Any) -> list[str]:
    """The hosts from which processes have called, in their order; they are hung up on."""
    taken = made.take(**wanted)
    for line, _ in taken:
        line.close()
    return [caller.host for _, caller in taken]


def on(*hosts: str) -> str:
    return " ".join(f'DISTBENCH_HOST={host} "$@" &' for host in hosts) + " wait"


def test_relays_call_and_come_in_the_order_of_the_names_and_strangers_are_not_heard(tmp_path: Path) -> None:
    with started(tmp_path, on("n1", "n2"), names=["n2", "n1"]) as made:
        assert hosts_of(made) == ["n2", "n1"]

    with started(tmp_path, f"DISTBENCH_RELAY_SECRET=wrong {on('n1')[:-4]} {on('n1')}", count=1) as made:
        assert hosts_of(made) == ["n1"]


def test_hosts_whose_names_nobody_knew_before_come_in_the_order_of_theirs(tmp_path: Path) -> None:
    with started(tmp_path, on("b", "a"), module=DESCRIBE) as made:
        assert hosts_of(made, until_the_end=True) == ["a", "b"]


@pytest.mark.parametrize(
    ("does", "names", "text"),
    [
        (
            "echo Invalid partition >&2; exit 3",
            [],
            r"sh has ended \(exit code 3\) before all hosts called; 0 of 2 .*Invalid partition'. Are they up\?",
        ),
        (on("n1", "n1"), [], "sh has started two processes on n1; wanted one on each of 2 hosts"),
        (on("n1", "n7"), ["n1", "n2"], "n7 has called, which is not one of n1, n2"),
    ],
    ids=["ends", "twice on a host", "elsewhere"],
)
def test_relays_that_do_not_all_call_are_an_error(tmp_path: Path, does: str, names: list[str], text: str) -> None:
    with started(tmp_path, does, names=names) as made, pytest.raises(LauncherError, match=text):
        made.take()


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["n1"], r"sh has ended \(exit code 0\) before all hosts called; 1 of 2 hosts have called \(n1\)"),
        (["n1", "n2", "n3"], "sh has started processes on n., n., n.; wanted 2"),
    ],
    ids=["too few", "too many"],
)
def test_too_few_or_too_many_hosts_are_an_error(tmp_path: Path, hosts: list[str], text: str) -> None:
    with started(tmp_path, on(*hosts), module=DESCRIBE) as made, pytest.raises(LauncherError, match=text):
        made.take(until_the_end=True)


def test_a_command_that_outlives_all_that_it_started_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_END_S", 1.0)
    text = r"sh goes on, though what it started on n., n. has ended; it must end with them"
    with (
        started(tmp_path, f"{on('n1', 'n2')}; sleep 60", module=DESCRIBE) as made,
        pytest.raises(LauncherError, match=text),
    ):
        made.take(until_the_end=True)


def test_a_host_from_which_nobody_calls_is_named(tmp_path: Path) -> None:
    text = r"1 of 2 hosts have called \(n1\), and not n2 within 10 s: .* Are they up\?"
    with (
        started(tmp_path, f"{on('n1')[:-5]} sleep 60", names=["n1", "n2"]) as made,
        pytest.raises(NotCalled, match=text) as raised,
    ):
        made.take(limit_s=10.0)

    assert raised.value.missing == ["n2"]


def test_a_host_whose_other_connection_breaks_is_not_waited_for(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with (
        ours,
        started(tmp_path, "sleep 1000", names=["n1"]) as made,
        pytest.raises(NotCalled, match="host n1 was lost before all hosts called"),
    ):
        made.take(limit_s=500.0, among={"n1": ours})


def test_some_hosts_may_call_again(tmp_path: Path) -> None:
    with started(tmp_path, f"{on('n1', 'n2')}; {on('n1')}", names=["n1", "n2"]) as made:
        assert sorted(hosts_of(made)) == ["n1", "n2"]
        assert hosts_of(made, names=["n1"]) == ["n1"]


def test_a_command_is_ended_with_what_it_has_started_here_whatever_that_makes_of_sigterm(tmp_path: Path) -> None:
    up = tmp_path / "up"
    deaf = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('{up}', 'w').close(); time.sleep(60)"
    )
    with started(tmp_path, f'{sys.executable} -c "{deaf}"; true') as made:
        wait_for(up.exists)
        made.kill()

    wait_for(lambda: processes.group(made.pid) == [])


def test_a_name_that_leads_this_host_to_itself_is_the_last_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in (("lo", "127.0.0.1"), ("eth0", "10.0.0.1"))
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: found)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr("socket.gethostbyname", {"here": "127.0.1.1"}.get)
    assert addresses() == ["10.0.0.1", "here"]

    monkeypatch.setattr("socket.gethostbyname", {"here": "10.0.0.1"}.get)
    assert addresses() == ["here", "10.0.0.1"]


SAY = """
import os, socket, sys
port, address, *_ = sys.argv[1:]
for said in os.environ["SAID"].splitlines():
    line = socket.create_connection((address, port))
    line.sendall(said.replace("SECRET", os.environ["DISTBENCH_RELAY_SECRET"]).encode() + b"\\n")
"""


def says(*platforms: str, torch: str = "2.13.0", sees: bool = True) -> str:
    """Each of two hosts says that it is of a class; the last one runs this torch, and sees the folder or not."""
    environment = hardware.describe(platform_name="x", gpus=Gpus(), software={"torch": "2.13.0"}, variables={})
    said = []
    for number, platform in enumerate(platforms, 1):
        software = {"torch": torch if number == len(platforms) else "2.13.0"}
        described = replace(environment, platform=platform, software=software)
        told = Caller(secret="SECRET", host=f"n{number}", environment=described, sees=sees or number == 1)
        said.append(msgspec.json.encode(told).decode())
    return f"SAID={shlex.quote(chr(10).join(reversed(said)))} {sys.executable} -c {shlex.quote(SAY)} $4 $5"


def described(does: str, *, gpu: bool = False, platform: str = "") -> tuple[Environment, bool]:
    def start(module: str, *words: str, log: Path, session: str) -> Callers:
        rest: dict[str, Any] = {"environment": os.environ, "count": 2, "log": log, "session": session, "advice": "Up?"}
        python = [sys.executable, "-m", module]
        return Callers(lambda where, _: ["sh", "-c", does, "sh", *python, *where, *words], **rest)

    return describe_hosts("the hosts", start, gpu=gpu, platform=platform, gpu_advice="take others")


def test_hosts_are_of_their_class_or_of_the_one_that_is_named_and_share_a_folder_that_all_see() -> None:
    assert described(says("cpu-a", "cpu-a"))[0].platform == "cpu-a"

    assert described(says("cpu-a", "cpu-a"))[1]
    assert not described(says("cpu-a", "cpu-a", sees=False))[1]

    assert described(says("cpu-a", "cpu-b"), platform="mine")[0].platform == "mine"


@pytest.mark.parametrize(
    ("does", "gpu", "text"),
    [
        (says("cpu-a", "cpu-b"), False, r"different hardware: .* n1: 'cpu-a'; n2: 'cpu-b'"),
        (says("cpu-a", "cpu-a", torch="2.12.0"), False, r"have different software: n1: .*2\.13.*; n2: .*2\.12"),
        (says("cpu-a", "cpu-a"), True, r"--gpu: no GPU is visible on n1: take others"),
        (says("cpu-a"), False, r"the hosts do not all report their hardware: .*1 of 2 hosts have called \(n1\)"),
        ("echo No module named pytest_distbench >&2; exit 1", False, r"0 of 2 hosts .*No module named"),
    ],
    ids=["classes", "software", "no GPU", "one is silent", "not installed"],
)
def test_hosts_that_cannot_be_compared_are_refused(does: str, gpu: bool, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        described(does, gpu=gpu)


def test_hosts_that_do_not_answer_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_S", 0.5)

    with pytest.raises(ConfigurationError, match=r"0 of 2 hosts have called within 1 s: 'sh said nothing'. Up\?"):
        described("exec sleep 60")


@pytest.mark.parametrize("sees", [True, False])
def test_a_host_reports_its_platform_its_software_and_whether_it_sees_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sees: bool
) -> None:
    folder = str(tmp_path if sees else tmp_path / "elsewhere")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr("sys.argv", ["describe", str(listener.getsockname()[1]), "127.0.0.1", SEES + folder])
        main()
        line, _ = listener.accept()
        with line, line.makefile("rb") as said:
            told = msgspec.json.decode(said.read(), type=Caller)

    assert (told.host, told.secret, told.sees) == ("n3", "s", sees)
    assert told.environment is not None
    assert told.environment.platform == hardware.cpu_class()
    assert told.environment.software["torch"] == hardware.installed_version("torch")
    assert told.environment.gpu_host is None
