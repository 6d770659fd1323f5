"""The torchrun command line tool on each of several hosts.

``python -m pytest_distbench.hosts.torchrun PORT ADDRESS...`` is the relay (``hosts/relay.py``) of a host whose ranks
it starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from pytest_distbench.hosts import relay
from pytest_distbench.launch.site.local import RunningLaunch
from pytest_distbench.launch.starters.torchrun import TORCHRUN, start_torchrun
from pytest_distbench.records.plan import LaunchPlan


def torchrun_of_node(processes: int, *, place: Mapping[str, str], address: str, logs: Path) -> list[str]:
    """The command line of the torchrun of one of several hosts, up to what its ranks run.

    They meet at a rendezvous that the first host keeps, and are numbered in the order of their addresses, as texts.

    Args:
        place: of one of them (``records/launch_files.py``); the store that it names is that of the rendezvous.
        address: of this host, at which the others reach it.
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
    """Starts the agent of one node, whose ranks get their places from it.

    Args:
        places: rank -> its place, as the controller expects it.
        address: of this host, at which the others reach it.
    """

    def __init__(self, places: Mapping[int, Mapping[str, str]], address: str) -> None:
        self._places = places
        self._address = address

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        place = next(iter(self._places.values()))
        command = torchrun_of_node(len(self._places), place=place, address=self._address, logs=plan.files.torchrun_logs)
        return start_torchrun(command, plan, self.leftovers)

    def leftovers(self) -> list[psutil.Process]:
        """Orphans are adopted by this process."""
        return psutil.Process().children(recursive=True)


def main() -> None:
    """Serve one launch."""
    port, *addresses = sys.argv[1:]
    with relay.call(addresses, int(port), os.environ.pop(relay.SECRET_VARIABLE)) as line:
        address = line.getsockname()[0]
        relay.serve(line, lambda order: NodeAgent(order.places, address))


if __name__ == "__main__":
    main()
