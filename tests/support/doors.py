"""Which sockets a test's processes listen on. A process of its own looks: a test that forks may have no second thread.

``python doors.py MARK FILE`` writes a line ``ADDRESS PORT COMMAND`` for each, until it is ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "DISTBENCH_TEST"
"""Variable of all processes of a test, as in ``support/processes.py``."""
_LISTENS = "0A"
_LOOK_S = 0.05


def is_open(address: str) -> bool:
    """Whether others than this host reach what listens there."""
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return not (mapped or found).is_loopback


@contextlib.contextmanager
def watched(value: str, file: Path) -> Iterator[None]:
    """Note in a file what processes with a mark listen on."""
    with subprocess.Popen([sys.executable, __file__, value, str(file)], env={}) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def _inodes() -> set[str]:
    """Inodes of all listening sockets of this host."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                found.add(fields[9])
    return found


def _listening(value: str) -> set[str]:
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == value:
                for socket in process.net_connections("inet"):
                    if socket.status == psutil.CONN_LISTEN:
                        command = " ".join(process.cmdline())[:200].replace("\n", " ")
                        found.add(f"{socket.laddr.ip} {socket.laddr.port} {command}")
    return found


def main(value: str, file: str) -> None:
    """Look until somebody ends this process."""
    known, told = _inodes(), set[str]()
    while True:
        now = _inodes()
        if not now <= known:
            with open(file, "a") as log:
                for line in _listening(value) - told:
                    told.add(line)
                    log.write(f"{line}\n")
        known = now
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
