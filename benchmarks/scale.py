"""What pytest's own process costs as the ranks of a launch become more, and a store with as many clients.

    python benchmarks/scale.py [--ranks 16,256,1000,10000] [--per-host 8] [--clients 4096]

**The ranks are simulated.** Two real ranks run three loops of all_reduce and one of a training; then one process stands
for all relays of all hosts, and has each rank say and report what a real one did, over as many connections as there are
hosts. What is measured is real: pytest's side of these lines, the supervision of a launch, and the reduction of what
hosts have reduced to one record. No rank computes, nothing is a baseline, and what the hosts would cost is not in it:
that process reduces the reports of one host, and has the others say the same of theirs. Each size is measured in a
process of its own.

The store is real: torch's, with clients in four other processes, which connect, meet at a counter, and set a value.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from pathlib import Path

import msgspec
import psutil

from pytest_distbench.hosts.relay import Message
from pytest_distbench.hosts.relayed import Host, RelayedSite
from pytest_distbench.launch.reduce import reduce_host
from pytest_distbench.launch.site import Exit
from pytest_distbench.launch.starters import NO_REVERSE_DNS
from pytest_distbench.launch.supervise import Side, supervise
from pytest_distbench.records.iteration import Fingerprint, rank_ranges
from pytest_distbench.records.launch import HostReport, RankReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks, read_work
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import ALL_JOINED, ALL_UP, Lines, RankWord, rank_event


class SimulatedLauncher:
    """Ranks of which nothing is real but what they say."""

    name = "simulated"
    session = "simulated"

    def __init__(self, report: Path, per_host: int) -> None:
        self._report, self._per_host = report, per_host
        self.relays: subprocess.Popen[bytes] | None = None

    def prepare(self, variables: dict[str, str]) -> None:
        """Nothing."""

    def open(self, plan: LaunchPlan) -> RelayedSite:
        """All relays in one process."""
        ranks = range(plan.processes)
        hosts = [ranks[first : first + self._per_host] for first in range(0, plan.processes, self._per_host)]
        lines = [socket.socketpair() for _ in hosts]
        theirs = [there.fileno() for _, there in lines]
        given = json.dumps([[fd, those.start, those.stop] for fd, those in zip(theirs, hosts, strict=True)])
        words = [sys.executable, __file__, "--relays", str(self._report)]
        relays = self.relays = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=theirs, start_new_session=True
        )
        assert relays.stdin is not None
        relays.stdin.write(given.encode())
        relays.stdin.close()
        for _, there in lines:
            there.close()
        found = [Host(f"host{i}", line=ours, keeper=relays, ranks=hosts[i]) for i, (ours, _) in enumerate(lines)]
        return RelayedSite(plan, found, meeting_point=("127.0.0.1", 1))

    def bytes_said(self) -> int:
        """What the relays of the launch have sent to pytest, all of them together."""
        assert self.relays is not None
        assert self.relays.stdout is not None
        with self.relays.stdout as told:
            return int(told.read())

    def close(self) -> None:
        """Nothing."""


def _of(ranks: range, fingerprint: Fingerprint) -> Fingerprint:
    """The fingerprint of one rank as that of several, all alike."""
    who = rank_ranges(ranks)
    [rows] = fingerprint.collectives.values()
    facts = {name: {who: value} for name, of in fingerprint.facts.items() for value in of.values()}
    return replace(fingerprint, collectives={who: rows}, facts=facts, groups={}, beyond={}, course={})


class Relays:
    """All relays, which answer as real ones do; their ranks do at once what they are told."""

    def __init__(self, report: RankReport) -> None:
        self._report = report
        self._of_host: dict[int, HostReport] = {}
        self._selector = selectors.EpollSelector()

    def serve(self, hosts: list[list[int]]) -> None:
        """Until all lines are closed."""
        for descriptor, first, last in hosts:
            line = socket.socket(fileno=descriptor)
            self._selector.register(line, selectors.EVENT_READ, (Lines(), range(first, last)))
        left, said = len(hosts), 0
        while left:
            for key, _ in self._selector.select():
                assert isinstance(key.fileobj, socket.socket)
                lines, ranks = key.data
                if data := key.fileobj.recv(2**16):
                    words = [w for line in lines.take(data) for w in self._obey(line, ranks)]
                    text = b"".join(msgspec.json.encode(word) + b"\n" for word in words)
                    key.fileobj.sendall(text)
                    said += len(text)
                else:
                    self._selector.unregister(key.fileobj)
                    left -= 1
        print(said)

    def _reduced(self, ranks: range) -> HostReport:
        """What a relay makes of its ranks' reports; made once of as many ranks as a host has, and numbered anew."""
        begins = dict.fromkeys(("begin", "end"), time.monotonic())
        if len(ranks) not in self._of_host:
            own = replace(self._report, group_size=0)
            found = {rank: replace(own, rank=rank, fingerprints={}, entered={}) for rank in range(len(ranks))}
            self._of_host[len(ranks)] = reduce_host(found, lived_here=len(ranks), are_all=False)
        host = self._of_host[len(ranks)]
        return replace(
            host,
            ranks=[replace(r, rank=r.rank + ranks.start, phases={**r.phases, **begins}) for r in host.ranks],
            observations=[
                replace(part, of_ranks={ranks.start + rank: means for rank, means in part.of_ranks.items()})
                for part in host.observations
            ],
            fingerprints={key: _of(ranks, one) for key, one in self._report.fingerprints.items()},
        )

    def _obey(self, line: bytes, ranks: range) -> Iterator[Message]:
        match msgspec.json.decode(line, type=Message, dec_hook=read_work):
            case Message(what="ping", number=number):
                yield Message(what="pong", number=number, at=time.monotonic())
            case Message(what="start"):
                yield Message(what="done")
                yield from (_said(rank, "hello") for rank in ranks)
            case Message(what="ask", request=request) if request.encode() == ALL_UP:
                for rank in ranks:
                    yield from (_said(rank, "phase", text) for text in ("import", "rendezvous", "body"))
            case Message(what="ask", request=request) if request.encode() == ALL_JOINED:
                for rank in ranks:
                    yield from (_said(rank, "done"), _said(rank, "phase", "exit"), _said(rank, "phase", "teardown"))
                    yield Message(what="closed", rank=rank, at=time.monotonic())
                yield Message(what="ended", ended=Exit(codes=dict.fromkeys(ranks, 0)))
            case Message(what="clear"):
                yield Message(what="done", ended=Exit(), report=self._reduced(ranks))
            case _:
                yield Message(what="done")


def _said(rank: int, what: RankWord, text: str = "") -> Message:
    return Message(what="said", event=rank_event(what, rank, time.monotonic(), text))


def measure(ranks: int, per_host: int, report: Path) -> None:
    """Supervise one simulated launch, and print what it cost."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made, "launch")
        directory.mkdir()
        plan = LaunchPlan(
            index=0,
            world_size=ranks,
            backend="gloo",
            device="cpu",
            work=Ranks(body=BodyReference(file=__file__, function="none")),
            timeout_s=300.0,
            folder=made,
            directory=str(directory),
            data_dir=made,
            python_path=sys.path,
            variables=dict(os.environ),
        )
        launcher = SimulatedLauncher(report, per_host)
        before, began, cpu = psutil.Process().memory_info().rss, time.perf_counter(), time.process_time()
        record = supervise(plan, Side(launcher=lambda: launcher))
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if record.outcome != "passed":
            raise SystemExit(f"{ranks} simulated ranks: {record.reason[:2000]}")
        files = sum(path.is_file() for path in directory.rglob("*"))
        size = len(msgspec.json.encode(record))
    hosts, mib = -(-ranks // per_host), (peak - before) / 2**20
    sent_mb = launcher.bytes_said() / 1e6
    figures = f"{wall_s:>10.2f}{cpu_s:>8.2f}{1e3 * cpu_s / ranks:>13.2f}{mib:>10.0f}{sent_mb:>9.1f}{files:>7,}"
    print(f"{ranks:>7,}{hosts:>8,}{figures}{size / 1e3:>12.0f}")


def real_report(folder: Path) -> Path:
    """What a real rank reports that times fifty iterations."""
    from measuring import launched

    from pytest_distbench.launch.starters import LauncherSetup
    from pytest_distbench.launch.starters.torchrun import TorchrunLauncher

    launcher = TorchrunLauncher(LauncherSetup(directory=folder, session="scale"))
    record = launched(launcher, folder, "points", world_size=2)
    return LaunchFiles(Path(record.logs)).report(0)


def store(clients: int) -> None:
    """A store of torch's with many clients, and print how long they took."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only

    processes = 4
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    found: Queue[list[float]] = context.Queue()
    each = [
        context.Process(target=_be_clients, args=(master.port, clients, clients // processes, first, found))
        for first in range(0, clients, clients // processes)
    ]
    for process in each:
        process.start()
    times = [found.get(timeout=300) for _ in each]
    began = time.perf_counter()
    values = master.multi_get([f"report/{rank}" for rank in range(clients)])
    read_s = time.perf_counter() - began
    for process in each:
        process.join()
    assert len(values) == clients
    connect, meet, write = (max(column) for column in zip(*times, strict=True))
    print(
        f"\nstore, {clients:,} real clients: connect {connect:.2f} s, meet {meet:.2f} s, set 2 kB each {write:.2f} s, "
    )
    print(f"  read all {read_s:.2f} s; {clients + len(each):,} descriptors in the process that keeps it")


def _be_clients(port: int, of: int, count: int, first: int, found: Queue[list[float]]) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only

    moments = [time.perf_counter()]
    clients = [TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False) for _ in range(count)]
    moments.append(time.perf_counter())
    for client in clients:
        client.add("met", 1)
    while clients[0].add("met", 0) < of:
        time.sleep(0.005)
    moments.append(time.perf_counter())
    for rank, client in enumerate(clients, first):
        client.set(f"report/{rank}", "x" * 2000)
    moments.append(time.perf_counter())
    found.put([later - earlier for earlier, later in itertools.pairwise(moments)])


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="16,256,1000,10000")
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--clients", type=int, default=4096)
    parser.add_argument("--relays", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.relays:
        Relays(msgspec.json.decode(given.relays.read_bytes(), type=RankReport)).serve(json.load(sys.stdin))
        return
    if given.report:
        measure(int(given.ranks), given.per_host, given.report)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as made:
        report = real_report(Path(made))
        print(f"simulated ranks, {given.per_host} a host; a report of {report.stat().st_size / 1e3:.1f} kB each\n")
        print("  ranks   hosts  launch s   CPU s  CPU ms/rank  peak MiB    MB in  files   record kB", flush=True)
        for ranks in given.ranks.split(","):
            words = ["--ranks", ranks, "--per-host", str(given.per_host), "--report", str(report)]
            subprocess.run([sys.executable, __file__, *words], check=True)
    if given.clients:
        os.environ.update(NO_REVERSE_DNS)
        store(given.clients)


if __name__ == "__main__":
    main()
