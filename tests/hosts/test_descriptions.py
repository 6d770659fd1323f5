"""Hosts that tell what they are, with a stand-in for what starts something on each."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.hosts import calls
from pytest_distbench.hosts.calls import SEES, Callers, describe_hosts, main
from pytest_distbench.hosts.relay import SECRET_VARIABLE, Caller
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.record import replace

pytestmark = pytest.mark.spawn

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
    ("does", "gpu", "told"),
    [
        (says("cpu-a", "cpu-b"), False, r"different hardware: .* n1: 'cpu-a'; n2: 'cpu-b'"),
        (says("cpu-a", "cpu-a", torch="2.12.0"), False, r"have different software: n1: .*2\.13.*; n2: .*2\.12"),
        (says("cpu-a", "cpu-a"), True, r"--gpu: no GPU is visible on n1: take others"),
        (says("cpu-a"), False, r"the hosts do not all report their hardware: .*1 of 2 hosts have called \(n1\)"),
        ("echo No module named pytest_distbench >&2; exit 1", False, r"0 of 2 hosts .*No module named"),
    ],
    ids=["classes", "software", "no GPU", "one is silent", "not installed"],
)
def test_hosts_that_cannot_be_compared_are_refused(does: str, gpu: bool, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        described(does, gpu=gpu)


def test_hosts_that_do_not_answer_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_S", 0.5)

    with pytest.raises(ConfigurationError, match=r"0 of 2 hosts have called within 1 s: 'sh said nothing'. Up\?"):
        described("exec sleep 60")


@pytest.mark.parametrize("sees", [True, False])
def test_it_tells_its_class_and_its_software_and_whether_it_sees_a_folder(
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
