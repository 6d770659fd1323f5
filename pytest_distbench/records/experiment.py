"""What people write down of an experiment beside what a run measures: the fields of reports 000 and 001."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping

from pytest_distbench.records.record import Record

FIELDS: Mapping[str, str] = {
    "description": "Description",
    "storage": "Storage options",
    "workload": "workload",
    "cluster": "Cluster",
    "behind_gateway": "Behind a gateway",
    "servers": "# of servers",
    "addresses": "IPs/DNS",
    "cluster_info": "Pointer to cluster info",
    "results": "Pointer to results",
    "expected": "Expected results",
    "storage_config": "s3fs config",
    "data_set": "input data set",
    "summary": "Brief summary and next steps",
    "instance": "instance type",
    "schedule": "schedule",
    "warm_up": "warm-up",
    "multipliers": "multipliers",
    "backup_dir": "backup folder",
}
"""What can be stated, and the reports' headings of it; the time is the run's own."""


class Statement(Record, frozen=True, kw_only=True):
    """What was stated of some tests of a run."""

    of: str = ""
    """A pattern of names of tests, ``test_resnet*``, as :mod:`fnmatch` takes it; empty: all."""
    fields: dict[str, str]
    """By the keys of :data:`FIELDS`."""

    def is_of(self, test: str) -> bool:
        """Whether it is of a test, by its path and function."""
        return not self.of or any(fnmatch.fnmatchcase(known, self.of) for known in (test, test.rpartition("::")[2]))


class Experiment(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What was stated of a run."""

    statements: list[Statement] = []
    """Of several that are of a test the later one counts, field by field."""
    planned: dict[str, str] = {}
    """What is to become of a row of the environment: ``torch`` -> ``2.15``."""

    def stated(self, test: str) -> dict[str, str]:
        """What was stated of a test, by its path and function."""
        found: dict[str, str] = {}
        for statement in self.statements:
            if statement.is_of(test):
                found |= statement.fields
        return found

    def of_no_test(self, tests: Collection[str]) -> list[str]:
        """Patterns that are of none of these tests."""
        return [statement.of for statement in self.statements if not any(map(statement.is_of, tests))]
