"""An engine for ``--distbench-launcher`` whose hosts are this one: ``python engine.py NODES COMMAND...``.

It starts the command once for each host, with a name of its own, and ends when all have, as ``mpirun`` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

TEMPLATE = f"{sys.executable} {__file__} {{nodes}} {{command}}"
VARIABLE = "DISTBENCH_TEST_TEMPLATE"
"""Another template, for the list of conformance."""
ENGINE = os.environ.get(VARIABLE, TEMPLATE)


def main() -> int:
    """Start all, and pass on that they are to end."""
    nodes, command = int(sys.argv[1]), sys.argv[2:]
    started = [
        subprocess.Popen(command, env={**os.environ, "DISTBENCH_HOST": f"host{number}"}) for number in range(nodes)
    ]
    signal.signal(signal.SIGTERM, lambda *_: [each.terminate() for each in started])
    return max(each.wait() for each in started)


if __name__ == "__main__":
    sys.exit(main())
