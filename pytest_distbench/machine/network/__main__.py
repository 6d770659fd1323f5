"""Holds the hosts of a network: ``python -m pytest_distbench.machine.network HOSTS NETWORK``."""

import sys

from pytest_distbench.machine.network.hosts import serve
from pytest_distbench.records.network import parse_network

if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), parse_network(sys.argv[2])))
