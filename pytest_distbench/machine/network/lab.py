"""A network between hosts that are namespaces of this one, as pytest's process sees it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.records.network import USER_NAMESPACE, Network, NetworkAnswer, Passage, host_place

_ANSWERS_S = 60.0
_ENDS_S = 5.0


class Lab:
    """The hosts of a network, while a process of their own holds them; they go with it.

    Args:
        network: that joins them.
        hosts: how many.
        folder: where ranks find the namespaces: a link for each, see :func:`host_place`. Made, and removed.

    Raises:
        AroundUnavailable: this machine has no such thing, or gives it not to this user.
    """

    def __init__(self, network: Network, hosts: int, folder: Path) -> None:
        self.network = network
        self._folder = folder
        package = Path(__file__).parents[3]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}", str(hosts), network.text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            start_new_session=True,  # Ctrl-C is not its to act on
        )
        try:
            answer = self._answer()
            self.made_by = answer.made_by
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for host, place in enumerate(answer.places):
                Path(host_place(str(folder), host)).symlink_to(place)
            if answer.is_user:
                (folder / USER_NAMESPACE).symlink_to(f"/proc/{self._process.pid}/ns/user")
        except BaseException:
            self.close()
            raise

    @property
    def is_there(self) -> bool:
        """Whether the process that holds the hosts has not ended."""
        return self._process.poll() is None

    def probe(self) -> Sequence[Passage]:
        """What it carries, from each host to the next, by TCP alone.

        Raises:
            AroundUnavailable: it carries nothing, or the hosts are gone.
        """
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # it has ended, and said why
                self._process.stdin.write(b"probe\n")
                self._process.stdin.flush()
            return self._answer().passages
        except BaseException:
            self.close()  # an answer that comes late would be taken for that of the next probe
            raise

    def close(self) -> None:
        """End the process, and the network with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer(self) -> NetworkAnswer:
        """Its next line."""
        assert self._process.stdout is not None
        descriptor, text, until = self._process.stdout.fileno(), b"", time.monotonic() + _ANSWERS_S
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise AroundUnavailable(f"network {self.network.text}: no answer of its hosts for {_ANSWERS_S:g} s")
            piece = os.read(descriptor, 65536)
            if not piece:
                code = self._process.wait()
                raise AroundUnavailable(
                    f"network {self.network.text}: what holds its hosts has ended (exit status {code}); did somebody "
                    "end it? The next launch makes them anew"
                )
            text += piece
        answer = msgspec.json.decode(text, type=NetworkAnswer)
        if answer.trouble:
            raise AroundUnavailable(f"network {self.network.text}: {answer.trouble}")
        return answer
