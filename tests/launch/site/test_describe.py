"""A host that tells what it is."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from pytest_distbench.launch.site.describe import SEES, HostDescription, main
from pytest_distbench.launch.site.dial import SECRET_VARIABLE
from pytest_distbench.machine import hardware


@pytest.mark.parametrize("sees", [True, False])
def test_it_tells_its_class_and_its_software_and_whether_it_sees_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sees: bool
) -> None:
    folder = str(tmp_path if sees else tmp_path / "elsewhere")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr("sys.argv", ["describe", str(listener.getsockname()[1]), "127.0.0.1", SEES + folder])
        main()
        line, _ = listener.accept()
        with line, line.makefile("rb") as said:
            told = msgspec.json.decode(said.read(), type=HostDescription)

    assert (told.host, told.secret, told.sees) == ("n3", "s", sees)
    assert told.environment.platform == hardware.cpu_class()
    assert told.environment.software["torch"] == hardware.installed_version("torch")
    assert told.environment.gpu_host is None
