"""What the process of the hosts is told by others; that it makes them is tested in test_lab.py."""

from __future__ import annotations

import pytest

from pytest_distbench.machine.network.hosts import Unavailable, tell


def test_a_program_that_is_not_there_is_to_be_installed() -> None:
    with pytest.raises(Unavailable, match=r"no-such-program: No such file or directory\. Next: install iproute2"):
        tell("no-such-program", [])


def test_what_a_program_says_is_told_with_what_it_was_told() -> None:
    with pytest.raises(Unavailable, match=r"false cannot make it: exit status 1 \(of: link add; link set\)"):
        tell("false", ["link add", "link set"])
