"""A host that tells what it is."""

from __future__ import annotations

import socket

import msgspec
import pytest

from pytest_distbench.launch.site.describe import HostDescription, main
from pytest_distbench.launch.site.dial import SECRET_VARIABLE
from pytest_distbench.machine import hardware


def test_it_tells_its_class_and_its_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr("sys.argv", ["describe", str(listener.getsockname()[1]), "127.0.0.1"])
        main()
        line, _ = listener.accept()
        with line, line.makefile("rb") as said:
            told = msgspec.json.decode(said.read(), type=HostDescription)

    assert (told.host, told.secret) == ("n3", "s")
    assert told.environment.platform == hardware.cpu_class()
    assert told.environment.software["torch"] == hardware.installed_version("torch")
    assert told.environment.gpu_host is None
