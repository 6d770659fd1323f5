"""MobileNetV2 in the sizes that report 003 prints."""

from __future__ import annotations

import torch
from torch import nn

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.mobilenet import MobileNetV2


def test_its_size_is_the_reports() -> None:
    with torch.device("meta"):
        assert count(MobileNetV2(10)) == (2_236_682, 158)


def test_the_report_counts_running_statistics_too_where_there_are_100_classes() -> None:
    with torch.device("meta"):
        model = MobileNetV2(100)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    statistics = sum(n.running_mean.numel() + n.running_var.numel() for n in norms)  # type: ignore[union-attr]

    assert (count(model), statistics) == ((2_351_972, 158), 34_112)
    assert count(model).parameters + statistics == 2_386_084
