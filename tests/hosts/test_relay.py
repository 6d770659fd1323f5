"""A relay: how it calls, its folder, where ranks of its host run, and that they end with the stream."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from support.hosts import start_relay
from support.plans import make_plan
from support.processes import wait_for

from pytest_distbench.hosts import relay as relay_module
from pytest_distbench.hosts.relay import EVERYTHING, INTERFACE, Message, _localize, place_of, relay_folder
from pytest_distbench.hosts.relayed import Host, RelayedSite
from pytest_distbench.hosts.slurm import OF_TASKS
from pytest_distbench.launch.site import Exit
from pytest_distbench.launch.site.processes import is_alive
from pytest_distbench.read import stdout
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks, read_work
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import ALL_JOINED, ALL_UP, rank_event


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    """Its folder is mentioned where a test may mention it."""
    directory = tmp_path / "launch"
    directory.mkdir()
    plan = make_plan(directory)
    plan.files.began.touch()
    plan.files.work.mkdir()
    return replace(
        plan,
        working_dir=str(plan.files.work),
        data_dir=str(tmp_path),
        variables={"OUT": f"{plan.directory}/work/out", "BYTES": "a\u00ff"},
        work=Ranks(body=BodyReference(file="train.py", arguments=["--out", f"{plan.directory}/work/out"])),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "relay"
    made.mkdir()
    return made


def test_a_host_works_in_the_launchs_folder_where_it_sees_it_and_else_in_the_relays(
    plan: LaunchPlan, folder: Path
) -> None:
    here = _localize(plan, folder, began_ns=plan.files.began.stat().st_mtime_ns)

    assert (here.directory, here.working_dir, here.data_dir) == (str(folder), plan.working_dir, plan.data_dir)
    assert here.work == plan.work

    here = _localize(plan, folder, began_ns=plan.files.began.stat().st_mtime_ns + 1)

    assert here.working_dir == str(folder / "work")
    assert Path(here.working_dir).is_dir()
    assert Path(here.data_dir).is_dir()
    assert (here.expect(Ranks).body.arguments[1], here.variables["OUT"]) == (f"{folder}/work/out",) * 2
    assert here.variables["BYTES"] == "a\udcff"


def test_ranks_have_the_devices_of_their_own_host_and_the_interface_that_others_reach(
    plan: LaunchPlan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    plan = replace(plan, variables={**plan.variables, "CUDA_VISIBLE_DEVICES": "0,1"})
    began_ns = plan.files.began.stat().st_mtime_ns
    here = _localize(plan, folder, began_ns=began_ns, interface="eth7")
    chosen = replace(plan, variables={**plan.variables, INTERFACE: "ib0"})

    assert (here.variables["CUDA_VISIBLE_DEVICES"], here.variables[INTERFACE]) == ("4,5", "eth7")
    assert _localize(chosen, folder, began_ns=began_ns, interface="eth7").variables[INTERFACE] == "ib0"
    assert INTERFACE not in _localize(plan, folder, began_ns=began_ns).variables


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("10.1.2.3", "eth0"),
        ("::ffff:10.1.2.3", "eth0"),
        ("fe80::9%ib0", "ib0"),
        ("192.168.7.1", ""),
        ("127.0.1.1", ""),
        ("::1", ""),
        ("", ""),
    ],
)
def test_an_address_is_of_an_interface(address: str, interface: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = {"lo": ["127.0.0.1", "127.0.1.1", "::1"], "eth0": ["10.1.2.3", "52:54:00:12:34:56"], "ib0": ["fe80::9%ib0"]}
    found = {name: [SimpleNamespace(address=one) for one in all_of] for name, all_of in of.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)

    assert relay_module.interface_of(address) == interface


def test_a_connection_between_hosts_has_an_address_and_a_socket_pair_has_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as line:
        assert relay_module.own_address(line) == "127.0.0.1"
    one, other = socket.socketpair()
    with one, other:
        assert relay_module.own_address(one) == ""


BODY = """
import subprocess, sys, time

def body(rank):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env={}, start_new_session=True)
    rank.progress(step=1)
    time.sleep(1000)
"""


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    place = tmp_path / "temporary"
    place.mkdir()
    line, process = start_relay({**os.environ, "TMPDIR": str(place)}, tmp_path / "log")
    with process:
        yield line, process
        process.kill()
    assert list(place.iterdir()) == []


def start_site(
    relay: tuple[socket.socket, subprocess.Popen[bytes]], plan: LaunchPlan, code: str, **more: Any
) -> RelayedSite:
    """A launch of one rank over the relay, once the rank has said hello."""
    file = Path(plan.data_dir, "bodies.py")
    file.write_text(code)
    body = BodyReference(file=str(file), function="body", makes_group=False)
    work = Ranks(body=body, params=more.pop("params", {}))
    own = {"world_size": 1, "timeout_s": 60.0, "variables": dict(os.environ), "python_path": sys.path}
    host = Host("here", line=relay[0], keeper=relay[1], ranks=[0])
    site = RelayedSite(replace(plan, work=work, **own, **more), [host], meeting_point=("127.0.0.1", 29500))
    site.start()
    wait_for(lambda: any(event.what == "hello" for event in site.listen(1.0)))
    return site


@pytest.mark.spawn
@pytest.mark.parametrize("ends", [pytest.param(True, id="stream"), pytest.param(False, id="SIGTERM")])
def test_when_the_stream_breaks_the_ranks_end_and_what_they_have_started_and_no_file_stays(
    relay: tuple[socket.socket, subprocess.Popen[bytes]], plan: LaunchPlan, ends: bool
) -> None:
    site, process = start_site(relay, plan, BODY, reports_progress=True), relay[1]
    site.ask([0], ALL_UP)
    wait_for(lambda: any(event.what == "progress" for event in site.listen(1.0)))
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) == 2
    if not ends:
        process.terminate()
        wait_for(lambda: bool(site.listen(1.0)) or site.ended is not None)
        assert site.ended is not None
        assert site.ended.died
    site.close()

    assert [each for each in started if is_alive(each.pid)] == []


PRINTS = """
def body(rank):
    print("x" * 3_000_000)
    print("the end")
    if rank.params["fails"]:
        raise ValueError
"""


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("fails", "read", "least", "most"),
    [
        pytest.param(False, {}, 2**20, 2**20, id="much of one that passed"),
        pytest.param(True, {}, 3_000_000, 3_100_000, id="of one that failed"),
        pytest.param(False, {"x": stdout("(x)", better="info")}, 3_000_000, 3_100_000, id="with a reader"),
    ],
)
def test_of_a_rank_that_has_passed_the_end_of_its_output_comes_back(
    relay: tuple[socket.socket, subprocess.Popen[bytes]],
    plan: LaunchPlan,
    fails: bool,
    read: dict[str, Reader],
    least: int,
    most: int,
) -> None:
    site = start_site(relay, plan, PRINTS, params={"fails": fails}, read=read)
    site.ask([0], ALL_UP + ALL_JOINED)
    wait_for(lambda: bool(site.listen(1.0)) and bool(site.heard.ranks_done))
    site.end([0])
    site.clear()
    site.close()

    kept = plan.files.log(0).read_text()
    assert least <= len(kept) <= most
    assert "the end\n" in kept
    assert "\0" not in kept


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_the_first_address_that_answers_is_taken(listener: socket.socket) -> None:
    with relay_module.connect(["no-such-host.invalid", "127.0.0.1"], listener.getsockname()[1]) as line:
        assert line.getpeername()[0] == "127.0.0.1"
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_the_error_names_all_addresses_if_none_answers(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "_TRIES", 1)
    port = listener.getsockname()[1]
    listener.close()

    with pytest.raises(SystemExit, match=rf"at any of its addresses, port {port}: 127.0.0.1: Connection refused"):
        relay_module.connect(["127.0.0.1"], port)


def test_it_says_who_it_is_keeps_a_port_for_rank_0_and_ends_when_nobody_wants_it(listener: socket.socket) -> None:
    command = [sys.executable, "-m", "pytest_distbench.hosts.relay", str(listener.getsockname()[1]), "127.0.0.1"]
    environment = {
        **os.environ, "SLURMD_NODENAME": "n7", relay_module.SECRET_VARIABLE: "s",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    process = subprocess.Popen(command, env=environment)
    line, _ = listener.accept()
    with line, line.makefile("rb") as said:
        hello = msgspec.json.decode(said.readline(), type=relay_module.Caller)
        for address in ("127.0.0.1", "127.0.0.2"):  # torch's store listens at every address
            with pytest.raises(OSError, match="in use"), socket.socket() as other:
                other.bind((address, hello.port))
        with socket.create_server(("", hello.port)), socket.create_connection(("127.0.0.1", hello.port)):
            pass  # as rank 0 does, and the others

    assert (hello.host, hello.secret, hello.address) == ("n7", "s", "127.0.0.1")
    assert process.wait(timeout=30) == 0


LIVES = """
import sys
from pytest_distbench.hosts.relay import relay_folder
with relay_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process with a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate()


def test_it_goes_when_it_is_left_and_what_is_no_folder_of_a_relay_stays(temporary: Path) -> None:
    with relay_folder() as folder:
        assert folder.parent == temporary
        (folder / "plan.json").write_text("secret")
    assert list(temporary.iterdir()) == []

    (temporary / "distbench-relay-mine").mkdir()
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "lock").write_text("")
    (temporary / "distbench-relay-link").symlink_to(temporary / "elsewhere")
    with relay_folder():
        pass
    found = sorted(path.name for path in temporary.iterdir())
    assert found == ["distbench-relay-link", "distbench-relay-mine", "elsewhere"]


def test_that_of_a_relay_that_lives_stays_and_goes_when_the_next_begins_after_it_was_killed(temporary: Path) -> None:
    process, left = start(temporary)
    (left / "plan.json").write_text("secret")
    end(process, signal.SIGKILL)
    assert left.exists()
    with relay_folder() as folder:
        assert list(temporary.iterdir()) == [folder]

    process, other = start(temporary)
    with relay_folder():
        assert other.exists()
    end(process, signal.SIGTERM)


@pytest.mark.parametrize(
    ("of_pytest", "here", "of_its_ranks"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, {}),  # as on a login node without GPUs
        ({}, {"ROCR_VISIBLE_DEVICES": "1"}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ({"ZE_AFFINITY_MASK": "0", "MINE": "a"}, {"MINE": "b"}, {"MINE": "a"}),
        ({"SLURM_STEP_GPUS": "0", "NVIDIA_VISIBLE_DEVICES": "all"}, {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
         {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER": "x"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)  # fmt: skip
def test_what_names_devices_is_of_the_ranks_own_host(
    of_pytest: dict[str, str], here: dict[str, str], of_its_ranks: dict[str, str]
) -> None:
    assert relay_module.of_ranks(of_pytest, here) == of_its_ranks


def test_the_page_says_which_variables_are_not_simply_handed_on() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    names = [*OF_TASKS, *relay_module.OF_THE_HOST, INTERFACE]

    assert len(names) == len(set(names))
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "word",
    [
        Message(what="said", event=rank_event("progress", 1, 2.5, "\u00e9")),
        Message(what="wrote", rank=0, kind="log", offset=3, data=bytes(range(256))),
        Message(what="ended", ended=Exit(codes={0: -9, 11: 1})),
        Message(what="done", ranks=[1], ended=Exit(stuck={1: "there"}, oom_kills={0: 2})),
        Message(what="open", plan=make_plan(Path("launch")), places={3: {"RANK": "3"}}, began_ns=2**62),
    ],
)
def test_a_word_or_an_order_arrives_as_it_was_given(word: Message) -> None:
    assert msgspec.json.decode(msgspec.json.encode(word), type=Message, dec_hook=read_work) == word


def test_every_kind_of_file_has_a_name_for_each_rank(tmp_path: Path) -> None:
    named = {place_of(LaunchFiles(tmp_path), kind, rank) for kind in EVERYTHING for rank in range(2)}

    assert len(named) == 2 * len(EVERYTHING)


@pytest.mark.parametrize(("node", "is_host"), [("0", "True"), ("1", "False")])
def test_the_torchruns_of_several_hosts_meet_at_the_first(tmp_path: Path, node: str, is_host: str) -> None:
    place = {
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40123", "GROUP_RANK": node, "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "abc",
    }  # fmt: skip
    words = relay_module.torchrun_of_node(4, place=place, address="10.0.0.7", logs=tmp_path)
    given = dict(word.split("=", 1) for word in words if word.startswith("--"))

    assert given["--rdzv-endpoint"] == "10.0.0.1:40123"
    assert given["--rdzv-conf"] == f"is_host={is_host}"
    assert (given["--nnodes"], given["--nproc-per-node"]) == ("2", "4")
    assert given["--local-addr"] == "10.0.0.7"


def test_what_starts_for_each_launch_loads_no_torch() -> None:
    """It takes seconds, and a guardian or a relay has nothing to do with it."""
    names = "pytest_distbench.launch.site.processes, pytest_distbench.hosts.relay"
    code = f"import sys, {names}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {"torch", "numpy"} & set(found.stdout.split()) == set()
