"""The entry point of every pod of a TrainJob: pod 0 runs pytest, the others run what its launches start on them.

``python pods.py COMMAND...`` runs the command on pod 0, and waits for it on the others. ``python pods.py --start NODES
COMMAND...`` is the engine of ``--distbench-launcher``: it runs the command on so many pods, the first of which is
this one. The pods know each other by the key in PODS_KEY, which they have from a Secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

NODE, NODES = int(os.environ["PET_NODE_RANK"]), int(os.environ["PET_NNODES"])
FIRST = os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])
KEY = os.environ["PODS_KEY"].encode()
PAUSE_S = 0.2
FAREWELL_S = 60


def main() -> int:
    """Be what this pod is to be."""
    if sys.argv[1] == "--start":
        return start(int(sys.argv[2]), sys.argv[3:])
    if NODE:
        return wait()
    code = subprocess.run(sys.argv[1:], check=False).returncode
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(code))  # a pod that has gone does not come
    signal.alarm(FAREWELL_S)
    for line in gather(NODES).values():
        line.send_bytes(b"null")
    return code


def start(nodes: int, command: list[str]) -> int:
    """Run a command on the first pods, and end when all have ended it."""
    lines = gather(nodes)
    for line in lines.values():
        line.send_bytes(json.dumps(command).encode())
    codes = [subprocess.run(command, check=False).returncode]
    for line in lines.values():
        with contextlib.suppress(EOFError, OSError):  # the pod is gone, which pytest has seen itself
            codes.append(int(line.recv_bytes()))
    return max(map(abs, codes))


def gather(nodes: int) -> dict[int, Connection]:
    """The pods that wait, but for this one."""
    lines: dict[int, Connection] = {}
    with Listener(("", FIRST[1]), backlog=NODES, authkey=KEY) as listener:
        while len(lines) < nodes - 1:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                line = listener.accept()
                if (node := int(line.recv_bytes())) < nodes:
                    lines[node] = line
                else:
                    line.close()  # it is not needed now, and comes again
    return lines


def wait() -> int:
    """Run what pod 0 says, one after the other, until it says that there will be no more."""
    while True:
        try:
            with Client(FIRST, authkey=KEY) as line:
                line.send_bytes(str(NODE).encode())
                if (command := json.loads(line.recv_bytes())) is None:
                    return 0
                line.send_bytes(str(subprocess.run(command, check=False).returncode).encode())
        except (EOFError, OSError):  # pod 0 is not up yet, or between two launches
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
