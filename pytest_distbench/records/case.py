"""One measured point, and what its stored entry is known by."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pytest_distbench.records.record import Record


class CaseKey(Record, frozen=True, kw_only=True, order=True):
    """What tells the entries of one test apart: the case's id, and how its process group is made.

    As text, in files and on the screen: ``float32-ws2.gloo.warm``.
    """

    case_id: str
    """The bracketed part of the node id, and the name of the run, if it has one: ``float32-ws2``, ``ws4:one``."""
    backend: str
    launcher: str

    def __str__(self) -> str:
        return f"{self.case_id}.{self.backend}.{self.launcher}"

    @classmethod
    def parse(cls, text: str) -> CaseKey:
        """Read the text back; an id may hold dots.

        Raises:
            ValueError: it does not end in a backend and a launcher.
        """
        case_id, *group = text.rsplit(".", 2)
        if len(group) != 2:
            raise ValueError(f"{text!r} is no key of a case: wanted CASE.BACKEND.LAUNCHER")
        return cls(case_id=case_id, backend=group[0], launcher=group[1])

    @property
    def test_ids(self) -> list[str]:
        """What the test's own id may be: the name of a run follows a colon, but an id may hold colons too."""
        return [self.case_id[:i] for i, character in enumerate(self.case_id) if character == ":"] + [self.case_id]


class Case(Record, frozen=True, kw_only=True):
    """One measured point: a test with its parameters, on one kind of process group."""

    test: str
    """Path and function, without parameters: ``suites/collectives/test_all_reduce.py::test_all_reduce``."""
    key: CaseKey
    world_size: int
    device: Literal["cpu", "cuda"]
    params: dict[str, Any] = {}

    @property
    def title(self) -> str:
        """The function, with its class if it has one, and the case's id: ``test_all_reduce[float32-ws2]``."""
        function = self.test.partition("::")[2] or self.test
        return f"{function}[{self.key.case_id}]" if self.key.case_id else function

    @property
    def folder(self) -> str:
        """Test and key as a path: ``suites/test_a.py/test_b/ws2.gloo.warm``."""
        return f"{self.test.replace('::', '/')}/{self.key}"

    @property
    def workload(self) -> str:
        """Short hash of the parameters: a baseline with another hash measured something else."""
        text = json.dumps([self.world_size, self.device, self.params], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class EntryName(Record, frozen=True, kw_only=True, order=True):
    """What a stored entry is known by."""

    platform: str
    test: str
    key: str
    """A :class:`CaseKey` as text."""

    def __str__(self) -> str:
        return f"{self.test}[{self.key}]"
