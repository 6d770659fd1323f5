"""What the elastic suites share: the rule that the learning rate follows the number of nodes."""

import math

import pytest

from pytest_distbench.elastic import rates

FIXED = 2
"""Nodes of the run that the others are compared with."""


@pytest.fixture
def judge_rate(distbench):
    """Judge the rule of report 002, ``lr = schedule(epoch) * size``: ``judge_rate(moving, fixed, nodes=4)``."""

    def judge(moving, fixed, *, nodes):
        distbench.judge(
            "lr_rule",
            lambda launch, compared: furthest_rate(rates(launch), rates(compared), nodes),
            of=[moving, fixed],
            better="exact",
            at={"nodes": nodes},
            at_least=nodes / FIXED * (1 - 1e-12),
            at_most=nodes / FIXED * (1 + 1e-12),
        )

    return judge


def furthest_rate(moving, fixed, nodes):
    """The rate of so many nodes over that of two in the same epoch, which has its schedule: the one furthest off."""
    ratios = [
        rate / fixed[epoch, FIXED] for (epoch, n), rate in moving.items() if n == nodes and (epoch, FIXED) in fixed
    ]
    return max(ratios, key=lambda ratio: abs(math.log(ratio / (nodes / FIXED))))
