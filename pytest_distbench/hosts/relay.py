"""The relay of a host: the local site of its ranks, for a controller on another host.

``python -m pytest_distbench.hosts.relay PORT ADDRESS... [--torchrun]`` runs on each host, started by ``srun`` for
instance. It connects to the first address that answers, identifies itself with the secret in :data:`SECRET_VARIABLE`,
and relays for its host and one launch: it takes orders, a JSON line each, answers them, and starts the ranks, with
``--torchrun`` by that tool. When the connection breaks it ends the ranks and all they have started.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
import psutil

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site import Exit, processes
from pytest_distbench.launch.site.local import ChildRanks, LocalLauncher, LocalSite, RunningLaunch, start_interpreter
from pytest_distbench.launch.site.processes import adopt_orphans
from pytest_distbench.launch.starters.torchrun import TORCHRUN, TorchrunLaunch
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import HostReport
from pytest_distbench.records.launch_files import LaunchFiles, open_left
from pytest_distbench.records.plan import LaunchPlan, read_work
from pytest_distbench.records.record import Record, replace
from pytest_distbench.records.wire import Event, Lines, variables_from_wire

SECRET_VARIABLE = "DISTBENCH_RELAY_SECRET"
NAME_VARIABLES = ("DISTBENCH_HOST", "SLURMD_NODENAME")  # a host's name where it was asked for; else its host name
BY_TORCHRUN = "--torchrun"
_CONNECT_S = 10.0
_TRIES = 3
_LOST_S = 20  # after so many seconds without any sign of the other end a connection is broken


INTERFACE = "GLOO_SOCKET_IFNAME"
"""Variable with gloo's network interface. Unless it is set, ranks on several hosts use the one to pytest's host."""

OF_THE_HOST = {
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "ZE_AFFINITY_MASK",
}  # fmt: skip
"""Variables with devices, set by whoever started a process on the host: the step, the pod or the engine. Ranks have the
values of their own host for these, and pytest's for all others."""


FileKind = Literal["log", "stacks", "flight", "groups", "awaited"]
"""Kinds of a rank's files whose content a relay sends to the controller; each is a method of :class:`LaunchFiles`."""

OUTPUT: tuple[FileKind, ...] = ("log",)
EVERYTHING: tuple[FileKind, ...] = get_args(FileKind)

Order = Literal["open", "ping", "start", "ask", "signal", "running", "collect", "end", "fetch", "clear"]
"""Orders from the controller to a relay, one after the other. Each is answered by ``done``, but ``ping`` by ``pong``,
and ``ask`` and ``signal`` by nothing. ``open``: make a place for the launch. ``running``: list its running ranks.
``fetch``: send ranks' new output. ``clear``: end what is left, and send all files and reports. The others are a site's
methods."""
Word = Literal["pong", "said", "closed", "ended", "wrote", "done"]
"""Messages from a relay to the controller: ``said`` by a rank; ``closed``: a rank's line; ``ended``: all ranks there;
``wrote``: a rank, to a file, which starts again at offset 0."""


class Message(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the stream, with times in CLOCK_MONOTONIC seconds of the relay's host."""

    what: Order | Word
    rank: int = -1
    ranks: list[int] = []  # that it is about; of ``collect`` those that are undecided
    held: list[int] = []
    number: int = 0  # of a ping and its pong, or of a signal
    at: float = 0.0
    request: str = ""
    plan: LaunchPlan | None = None  # with its variables as they travel
    places: dict[int, dict[str, str]] = {}  # rank to live there -> its variables, as torchrun's
    began_ns: int = 0  # when the file of that name was made: a relay that finds the same one shares the launch's folder
    event: Event | None = None
    ended: Exit | None = None
    kind: FileKind = "log"
    offset: int = 0
    data: bytes = b""
    report: HostReport | None = None
    trouble: str = ""  # why an order could not be carried out; empty: it was


def place_of(files: LaunchFiles, kind: FileKind, rank: int) -> Path:
    name: Callable[[int], Path] = getattr(files, kind)
    return name(rank)


class Caller(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The first message of a process that connects: a relay, a node's parent, or one that describes its host.

    Attributes:
        address: the process's own address on the connection, by which other hosts reach it.
        port: port reserved on that address for the store at which all ranks meet.
        environment: hardware and software of the host, or None if it was not asked for.
        sees: whether the host sees a folder of the controller's.
    """

    secret: str
    host: str
    address: str = ""
    port: int = 0
    environment: Environment | None = None
    sees: bool = False


@contextlib.contextmanager
def call(addresses: Sequence[str], port: int, secret: str) -> Iterator[socket.socket]:
    """Connect to the controller and identify this relay, or raise :class:`SystemExit` if the controller is not reached.

    Meanwhile a port is reserved for torch's store, at every address of this host: it is bound, and named to the
    controller. Rank 0 can listen at it all the same, as this socket does not (SO_REUSEADDR, socket(7)).
    """
    with connect(addresses, port) as line, _every_address() as kept:
        address = line.getsockname()[0]
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("", 0))
        say(line, Caller(secret=secret, host=host_name(), address=address, port=kept.getsockname()[1]))
        yield line


def _every_address() -> socket.socket:
    if not socket.has_dualstack_ipv6():
        return socket.socket(socket.AF_INET)
    both = socket.socket(socket.AF_INET6)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return both


def say(line: socket.socket, caller: Caller) -> None:
    line.sendall(msgspec.json.encode(caller) + b"\n")


def connect(addresses: Sequence[str], port: int) -> socket.socket:
    """Connect to the first address that answers, or raise :class:`SystemExit`."""
    errors = {}
    for turn in range(_TRIES):
        for address in addresses:
            try:
                line = socket.create_connection((address, port), timeout=_CONNECT_S)
            except OSError as error:
                errors[address] = error
                continue
            line.settimeout(None)
            keep_alive(line)
            return line
        time.sleep(turn)
    tried = "; ".join(f"{address}: {error.strerror or error}" for address, error in errors.items())
    raise SystemExit(f"{host_name()} cannot reach the host of pytest at any of its addresses, port {port}: {tried}")


def keep_alive(line: socket.socket) -> None:
    """Make a connection notice within :data:`_LOST_S` that its other end is gone: a dead host closes nothing."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST_S // 4)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _LOST_S // 4)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_S * 1000)


def host_name() -> str:
    return next((os.environ[name] for name in NAME_VARIABLES if name in os.environ), socket.gethostname())


_PREFIX = "distbench-relay-"
_LOCK = "lock"


@contextlib.contextmanager
def relay_folder() -> Iterator[Path]:
    """Make a private folder below TMPDIR, and remove those of killed relays, which hold launches' variables."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/"):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile, or in use
            if left.lstat().st_uid == os.getuid() and not left.is_symlink():
                with (left / _LOCK).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with (folder / f".{_LOCK}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f".{_LOCK}").rename(folder / _LOCK)  # held already when others see it
            yield folder


_READ_BYTES = 65536
_CHUNK_BYTES = 2**18
_MOST_OUTPUT = 64 * 2**20
_MOST_OF_PASSED = 2**20
"""Most bytes of a passed rank's new output that a fetch sends; the rest is left out. Other ranks' output, from which
numbers may be read, has a higher limit."""


MakeLauncher = Callable[[Message], LocalLauncher]  # makes what starts the ranks that have a place here


def start_interpreters(order: Message) -> LocalLauncher:
    return ChildRanks(order.places, start_interpreter)


def serve(line: socket.socket, make_launcher: MakeLauncher = start_interpreters) -> None:
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with relay_folder() as folder:
        relay = Relay(line, folder, make_launcher)
        try:
            relay.serve()
        finally:
            relay.close()


class Relay:
    """Carries out the controller's orders on this host, and streams the events of its ranks back."""

    def __init__(self, line: socket.socket, folder: Path, make_launcher: MakeLauncher) -> None:
        self._make_launcher = make_launcher
        self._line = line
        self._folder = folder
        self._selector = selectors.EpollSelector()
        self._selector.register(line, selectors.EVENT_READ)
        self._site: LocalSite | None = None
        self._plan: LaunchPlan | None = None
        self._ranks: Sequence[int] = ()
        self._reported = 0
        self._reported_ends = 0
        self._has_ended = False
        self._sent: dict[tuple[int, FileKind], tuple[int, int]] = {}
        """(rank, kind of file) -> (bytes handled so far, sent or left out; bytes that were left out)."""

    def serve(self) -> None:
        lines = Lines()
        with contextlib.suppress(BrokenPipeError):
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._site:
                        self._site.listen(0.0)
                        continue
                    data = b""  # no more will come, however that came about: a network that has parted, too
                    with contextlib.suppress(OSError):
                        data = self._line.recv(_READ_BYTES)
                    if data:
                        for line in lines.take(data):
                            self._obey(msgspec.json.decode(line, type=Message, dec_hook=read_work))
                    else:
                        return
                self._report_news()

    def close(self) -> None:
        processes.kill(psutil.Process().children(recursive=True))
        processes.kill_descendants()
        if self._site is not None:
            self._site.close()
        self._selector.close()

    def _obey(self, order: Message) -> None:
        if order.what == "ping":
            return self._say(Message(what="pong", number=order.number, at=time.monotonic()))
        try:
            done = self._carry_out(order)
        except (LauncherError, OSError) as error:
            done = Message(what="done", trouble=str(error))
        self._report_news()
        if done is not None:
            self._say(done)
        return None

    def _carry_out(self, order: Message) -> Message | None:
        if order.what == "open":
            assert order.plan is not None
            is_alone = len(order.places) == order.plan.processes
            interface = "" if is_alone else interface_of(own_address(self._line))
            self._plan = plan = _localize(order.plan, self._folder, began_ns=order.began_ns, interface=interface)
            if lacking := [path for path in (plan.working_dir, *plan.work.files) if not os.path.exists(path)]:
                raise LauncherError(
                    f"ranks need {' and '.join(lacking)}, which this host does not see: it must be at the same path as "
                    "on pytest's host (another revision is checked out below TMPDIR there)"
                )
            self._ranks = sorted(order.places)
            self._site = LocalSite(self._make_launcher(order), plan, ranks=self._ranks)
            self._selector.register(self._site, selectors.EVENT_READ)
            return Message(what="done")
        site = self._site
        assert site is not None
        match order.what:
            case "start":
                site.start()
            case "ask":
                site.ask(order.ranks, order.request.encode())
                return None
            case "signal":
                site.signal(order.rank, signal.Signals(order.number))
                return None
            case "running":
                return Message(what="done", ranks=sorted(site.running()))
            case "collect":
                site.collect(undecided=order.ranks, held=order.held)
            case "end":
                site.end(order.ranks)
            case "fetch":
                self._send_files(OUTPUT)
            case "clear":
                ended = site.clear()
                self._send_files(EVERYTHING)
                [report] = site.reports()
                return Message(what="done", ended=ended, report=report)
        return Message(what="done")

    def _report_news(self) -> None:
        site = self._site
        if site is None:
            return
        for event in site.heard.events[self._reported :]:
            self._say(Message(what="said", event=event))
        self._reported = len(site.heard.events)
        for rank, at in [*site.heard.closed_at.items()][self._reported_ends :]:
            self._say(Message(what="closed", rank=rank, at=at))
        self._reported_ends = len(site.heard.closed_at)
        if site.ended is not None and not self._has_ended:
            self._has_ended = True
            self._say(Message(what="ended", ended=site.ended))

    def _send_files(self, kinds: Sequence[FileKind]) -> None:
        assert self._plan is not None
        assert self._site is not None
        passed = set() if self._plan.read else self._site.heard.ranks_passed
        for rank in self._ranks:
            for kind in kinds:
                with contextlib.suppress(OSError), open_left(place_of(self._plan.files, kind, rank)) as file:
                    end = file.seek(0, os.SEEK_END)
                    begin, left_out = self._sent.get((rank, kind), (0, 0))
                    if kind in OUTPUT:
                        last = end - (_MOST_OF_PASSED if rank in passed else _MOST_OUTPUT)
                        begin, left_out = max(begin, last), left_out + max(0, last - begin)
                    file.seek(begin)
                    while data := file.read(_CHUNK_BYTES):
                        self._say(Message(what="wrote", rank=rank, kind=kind, offset=begin - left_out, data=data))
                        begin += len(data)
                    self._sent[rank, kind] = begin, left_out

    def _say(self, word: Message) -> None:
        try:
            self._line.sendall(msgspec.json.encode(word) + b"\n")
        except OSError as error:
            raise BrokenPipeError(error.errno, error.strerror) from error


def own_address(line: socket.socket) -> str:
    """This host's address on a connection, or "" if the connection is not between hosts."""
    return str(line.getsockname()[0]) if line.family in (socket.AF_INET, socket.AF_INET6) else ""


def interface_of(address: str) -> str:
    """The network interface with an address, or "" if none has it or it is a loopback address."""
    mapped = address.removeprefix("::ffff:").split("%")[0]
    found = psutil.net_if_addrs().items() if mapped and not ipaddress.ip_address(mapped).is_loopback else ()
    return next((name for name, all_of in found if any(one.address.split("%")[0] == mapped for one in all_of)), "")


def of_ranks(variables: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Variables of ranks on this host: pytest's, but this host's for :data:`OF_THE_HOST`."""
    kept = {name: value for name, value in variables.items() if name not in OF_THE_HOST}
    return kept | {name: here[name] for name in sorted(OF_THE_HOST & here.keys())}


def _localize(plan: LaunchPlan, folder: Path, *, began_ns: int, interface: str = "") -> LaunchPlan:
    """The plan on this host: ranks write into its folder, and their output goes to the controller.

    Ranks run in the launch's own folder if it is seen from here, else in an empty one. Ranks on several hosts meet over
    ``interface`` unless one is chosen: gloo would take the one that the host's name leads to, which may be loopback.
    """
    variables = of_ranks(variables_from_wire(plan.variables), os.environ)
    if interface:
        variables.setdefault(INTERFACE, interface)
    with contextlib.suppress(OSError):
        if plan.files.began.stat().st_mtime_ns == began_ns:
            return replace(plan, directory=str(folder), variables=variables)

    def here(text: str) -> str:
        return text.replace(plan.directory, str(folder))

    data = folder / "data"
    local = replace(
        plan,
        directory=str(folder),
        data_dir=str(data),
        working_dir=here(plan.working_dir),
        variables={name: here(value) for name, value in variables.items()},
        work=plan.work.with_words(here),
    )
    for path in (data, local.files.work):
        path.mkdir()
    return local


def torchrun_of_node(processes: int, *, place: Mapping[str, str], address: str, logs: Path) -> list[str]:
    """Command line of one host's torchrun, up to the program of its ranks.

    They meet at the first host's rendezvous, whose place names the store, and are numbered by address, as text.
    """
    return [
        *TORCHRUN,
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={place['MASTER_ADDR']}:{place['MASTER_PORT']}",
        f"--rdzv-id={place['TORCHELASTIC_RUN_ID']}",
        f"--rdzv-conf=is_host={place['GROUP_RANK'] == '0'}",
        f"--nnodes={place['GROUP_WORLD_SIZE']}",
        f"--nproc-per-node={processes}",
        f"--log-dir={logs}",
        f"--local-addr={address}",
    ]


class NodeAgent:
    """Starts torchrun on this host, for the ranks that the controller assigned to it; a ``LocalLauncher``."""

    def __init__(self, places: Mapping[int, Mapping[str, str]], address: str) -> None:
        self._places = places
        self._address = address

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        place = next(iter(self._places.values()))
        command = torchrun_of_node(len(self._places), place=place, address=self._address, logs=plan.files.torchrun_logs)
        return TorchrunLaunch(command, plan, self.leftovers)

    def leftovers(self) -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)


def main() -> None:
    port, *addresses = (word for word in sys.argv[1:] if word != BY_TORCHRUN)
    secret = os.environ.pop(SECRET_VARIABLE)  # ranks have no use for it
    with call(addresses, int(port), secret) as line:
        address = line.getsockname()[0]
        serve(line, (lambda order: NodeAgent(order.places, address)) if BY_TORCHRUN in sys.argv else start_interpreters)


if __name__ == "__main__":
    main()
