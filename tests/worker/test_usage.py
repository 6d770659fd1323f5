"""What a process used, and the software it runs."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.plans import make_plan

from pytest_distbench.worker.usage import MemoryPeak, mpi_version, own_cpu_s, software


def test_work_shows_in_the_processes_own_time() -> None:
    before, until = own_cpu_s(), time.process_time() + 0.05
    while time.process_time() < until:
        pass

    assert own_cpu_s() - before >= 0.04


def test_memory_is_what_is_needed_beyond_what_the_process_had_and_what_is_freed_again_counts(tmp_path: Path) -> None:
    had = bytearray(b"x") * 2**26
    peak = MemoryPeak(make_plan(tmp_path))
    before = peak.num_bytes()
    needed = bytearray(b"x") * 2**26
    del had, needed
    now = peak.num_bytes()

    assert before is not None
    assert now is not None
    assert before < 2**24
    assert now == pytest.approx(2**26, rel=0.2)


def test_a_peak_from_before_the_beginning_is_forgotten(tmp_path: Path) -> None:
    needed = bytearray(b"x") * 2**26
    del needed

    assert (MemoryPeak(make_plan(tmp_path)).num_bytes() or 0) < 2**24


def test_pages_of_files_are_not_the_ranks_own(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(2**25))
    peak = MemoryPeak(make_plan(tmp_path))
    with open(tmp_path / "data", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        touched = sum(data[i] for i in range(0, 2**25, 4096))
        now = peak.num_bytes()

    assert touched == 0
    assert (now or 0) < 2**24


def test_where_the_system_does_not_tell_memory_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)

    assert MemoryPeak(make_plan(tmp_path)).num_bytes() is None


def test_versions_are_those_that_run(tmp_path: Path) -> None:
    found = software(make_plan(tmp_path))

    assert found["torch"] == str(torch.__version__)
    assert {"python", "numpy", "cpu_capability", "threads"} <= found.keys()


def test_to_tell_versions_a_rank_of_the_cpu_does_not_load_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("this loads the driver"))

    assert "cuda" not in software(make_plan(tmp_path))


class Mpi:
    """A process that has loaded an MPI library."""

    @staticmethod
    def MPI_Get_library_version(told: Any, length: Any) -> int:  # noqa: N802 its name in the standard
        told.value = b"Open MPI v5.0.6, package: Open MPI a@b Distribution\n"
        return 0


def test_the_version_of_mpi_is_the_librarys_own_without_who_built_it() -> None:
    assert mpi_version(Mpi()) == "Open MPI v5.0.6"


def test_a_process_without_mpi_has_no_version_of_it() -> None:
    assert mpi_version(object()) == ""
