"""Which format a file is of, and what is said of one that is of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.store import perf_output
from pytest_distbench.store.perf_output import read_perf_output

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_every_file_is_recognised_by_what_is_in_it(path: Path) -> None:
    assert read_perf_output(path)[0].rows


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"numCycle,collective,ranks\n0,AllReduce,8\n", b"step: 3 ms\n"])
def test_an_unknown_format_says_what_is_known(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(
        StoredFileError, match=r"of no format that can be imported\. Known are what nccl-tests and rccl"
    ):
        read_perf_output(tmp_path / "run")


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoredFileError, match="Known are"):
            read_perf_output(place)
    monkeypatch.setattr(perf_output, "MAX_FILE_BYTES", 10)
    with pytest.raises(StoredFileError, match="larger than"):
        read_perf_output(DATA / "nccl-tests.json")
