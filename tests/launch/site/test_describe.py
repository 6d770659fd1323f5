"""A host that tells what it is."""

from __future__ import annotations

import msgspec
import pytest

from pytest_distbench.launch.site.describe import HostDescription, main
from pytest_distbench.machine import hardware


def test_it_tells_its_class_and_its_software(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setattr("sys.argv", ["describe"])
    main()
    [line] = capsys.readouterr().out.splitlines()
    told = msgspec.json.decode(line, type=HostDescription)

    assert told.host == "n3"
    assert told.environment.platform == hardware.cpu_class()
    assert told.environment.software["torch"] == hardware.installed_version("torch")
    assert told.environment.gpu_host is None
