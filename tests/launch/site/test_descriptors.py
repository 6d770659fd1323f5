"""The limit of open files, before a launch that would reach it."""

from __future__ import annotations

import resource

import pytest

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.site.descriptors import check_calls, check_ranks


def limit(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))


def test_ranks_that_may_not_hold_what_they_need_of_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1024, 4096)
    check_ranks(480)

    told = r"a rank of 481 has up to 1,026 files .* may have 1,024 .*: ulimit -n 1026 .* \(without root up to 4,096\)"
    with pytest.raises(LauncherError, match=told):
        check_ranks(481)


def test_hosts_that_pytest_may_not_be_connected_to_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1024, resource.RLIM_INFINITY)
    check_calls(960)

    with pytest.raises(LauncherError, match=r"pytest, with ranks on 961 hosts, has up to 1,025 .* up to any number\)"):
        check_calls(961)


def test_without_a_limit_there_is_nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    check_ranks(10**6)
