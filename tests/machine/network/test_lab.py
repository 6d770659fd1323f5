"""Networks that are really made, as far as this machine lets us; what they carry is looked at by other means too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.networks import WITHOUT_PRIVILEGES, inside, slow_down, why_no_networks
from support.processes import LIMIT_S, wait_for

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.machine.network import Lab
from pytest_distbench.records.network import Network, host_address, host_place, parse_network
from pytest_distbench.run.around import misses

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

PING = """
import socket, sys
if sys.argv[1] == "serve":
    with socket.create_server((sys.argv[2], 7)) as listener:
        print("ready", flush=True)
        listener.accept()[0].sendall(b"hello")
else:
    print(socket.create_connection((sys.argv[2], 7), 10).recv(5).decode())
"""


@pytest.fixture(autouse=True)
def _can_be_made() -> None:
    if why := why_no_networks():
        pytest.skip(f"not run: {why}")


def carries_what_is_wanted(lab: Lab) -> bool:
    """In one of some probes: this machine is shared."""
    return any(not misses(lab.network, lab.probe()) for _ in range(10))


@pytest.mark.parametrize("text", ["100mbit", "50mbit,delay=5ms", "100mbit,overlay", "50mbit,overlay,delay=2ms"])
def test_a_probe_finds_what_was_wanted(text: str, tmp_path: Path) -> None:
    if why := why_no_networks(text):
        pytest.skip(f"not run: {why}")
    lab = Lab(parse_network(text), 3, tmp_path / "hosts")
    try:
        assert carries_what_is_wanted(lab)
        assert [(p.source, p.target) for p in lab.probe()] == [(0, 1), (1, 2), (2, 0)]
    finally:
        lab.close()


def test_hosts_reach_each_other_and_nobody_else(tmp_path: Path) -> None:
    lab = Lab(Network(), 2, tmp_path / "hosts")
    places = [host_place(str(tmp_path / "hosts"), host) for host in range(2)]
    try:
        server = subprocess.Popen(
            ["nsenter", f"--net={places[1]}", sys.executable, "-c", PING, "serve", host_address(1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert inside(places[0], sys.executable, "-c", PING, "ask", host_address(1)) == "hello\n"
        server.wait()
        server.stdout.close()
        assert inside(places[0], "ip", "-4", "-brief", "route").split() == ["10.78.0.0/16", "dev", "eth0", "proto",
            "kernel", "scope", "link", "src", host_address(0)]  # fmt: skip
    finally:
        lab.close()


def test_one_slow_host_is_named(tmp_path: Path) -> None:
    lab = Lab(parse_network("100mbit"), 3, tmp_path / "hosts")
    try:
        assert carries_what_is_wanted(lab)
        slow_down(str(tmp_path / "hosts"), 1, "50mbit")
        told = misses(lab.network, lab.probe())
    finally:
        lab.close()
    assert [line.partition(" carries")[0] for line in told] == ["host 1 to host 2"]


def test_an_ordinary_user_has_them_in_a_namespace_of_his_own(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pytest_distbench.machine.network import Lab; "
        "from pytest_distbench.records.network import Network; "
        "lab = Lab(Network(), 2, Path(sys.argv[1])); lab.probe(); "
        "print(sorted(p.name for p in Path(sys.argv[1]).iterdir())); lab.close()"
    )
    command = [*WITHOUT_PRIVILEGES, sys.executable, "-c", script, str(tmp_path / "hosts")]
    ended = subprocess.run(command, capture_output=True, text=True)
    if "no network namespace" in ended.stderr:
        pytest.skip("not run: this machine gives an ordinary user no namespaces")
    assert ended.stdout.strip() == "['host0', 'host1', 'user']", ended.stderr


def test_where_there_are_no_namespaces_it_is_told_what_to_do(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pytest_distbench.machine.network import Lab; "
        "from pytest_distbench.records.network import Network; Lab(Network(), 2, Path(sys.argv[1]))"
    )
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *WITHOUT_PRIVILEGES, sys.executable]
    ended = subprocess.run([*command, "-c", script, str(tmp_path / "hosts")], capture_output=True, text=True)
    assert ended.returncode
    assert "the kernel gives this user no network namespace: " in ended.stderr
    assert "Next: run pytest as root, or allow user namespaces" in ended.stderr


def test_they_go_with_the_process_that_wanted_them(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from pytest_distbench.machine.network import Lab; "
        "from pytest_distbench.records.network import parse_network; "
        "Lab(parse_network('100mbit,delay=1ms'), 2, Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    mark = f"test-{tmp_path.name}"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "hosts")], env={**os.environ, "NETWORK_TEST": mark})
    wait_for(lambda: not _marked(mark))


def test_hosts_that_are_gone_are_told(tmp_path: Path) -> None:
    lab = Lab(Network(), 2, tmp_path / "hosts")
    lab._process.kill()
    lab._process.wait()
    assert not lab.is_there
    with pytest.raises(AroundUnavailable, match="what holds its hosts has ended"):
        lab.probe()
    assert not (tmp_path / "hosts").exists()


def _marked(mark: str) -> list[str]:
    needle = f"NETWORK_TEST={mark}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if needle in (process / "environ").read_bytes():
                    found.append(process.name)
            except OSError:
                continue
    return found
