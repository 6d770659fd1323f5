"""The made-up driver answers as a real one does where it is not described: not supported."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from support.nvml import HOSTS, VARIABLE, made_up


def test_what_is_not_described_is_not_supported() -> None:
    with made_up(HOSTS["H200"]):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError) as caught:
            pynvml.nvmlDeviceGetFanSpeed(handle)

    assert caught.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_afterwards_the_real_driver_is_asked() -> None:
    before = pynvml.nvmlInit
    with made_up(HOSTS["H200"]):
        assert pynvml.nvmlInit is not before

    assert pynvml.nvmlInit is before


def test_as_a_plugin_it_shows_the_host_that_the_environment_names(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("import pynvml\n\ndef test_it():\n    assert pynvml.nvmlDeviceGetCount() == 8\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv(VARIABLE, "8xH100")
    passed = pytester.runpytest_subprocess("-p", "support.nvml")
    monkeypatch.setenv(VARIABLE, "9xH100")
    refused = pytester.runpytest_subprocess("-p", "support.nvml")

    assert passed.ret == 0
    refused.stderr.fnmatch_lines(["*there is no made-up host '9xH100'; known are*"])
