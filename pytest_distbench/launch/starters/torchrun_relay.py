"""A relay whose ranks a torchrun of its node starts; called, and calling, as ``site/dial.py``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import psutil

from pytest_distbench.launch.site import dial, relay
from pytest_distbench.launch.site.local import RunningLaunch
from pytest_distbench.launch.starters.torchrun import start_torchrun, torchrun_of_node
from pytest_distbench.records.plan import LaunchPlan


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
    port, *addresses = sys.argv[1:]
    with dial.call(addresses, int(port), os.environ.pop(dial.SECRET_VARIABLE)) as line:
        address = line.getsockname()[0]
        relay.serve(line, lambda order: NodeAgent(order.places, address))


if __name__ == "__main__":
    main()
