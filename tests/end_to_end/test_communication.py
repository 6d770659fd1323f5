"""The example of docs/communication.md runs as it stands: every shape is measured and judged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.releases import RECORDS

PAGE = (Path(__file__).parents[2] / "docs" / "communication.md").read_text()


@pytest.mark.spawn
def test_each_shape_is_one_line_of_a_test(pytester: pytest.Pytester) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    pytester.makepyfile(test_shapes=example)
    result = pytester.runpytest_subprocess(
        "-p", "no:sugar", "-p", "no:cacheprovider", "--world-size=2", "--distbench-json=run.json"
    )

    assert result.ret == 0
    cases = json.loads((pytester.path / "run.json").read_text())["results"]
    judged = {case["nodeid"].rpartition("::")[2]: {v["metric"] for v in case["verdicts"]} for case in cases}
    assert len(judged["test_gradients[ws2]"] - {"fingerprint"}) == 9
    assert {"communication_time", "compute_time", "both_time"} <= judged["test_beside_computing[ws2]"]
    assert {"step_time[hook=fp16]", "gradient_error[hook=fp16]"} <= judged["test_half_precision[ws2]"]
    assert judged["test_cluster[ws2]"] >= {"latency[from=0,to=1]", "bandwidth[from=0,to=1]"}
    assert not RECORDS or "gradient_bytes[hook=fp16]" in judged["test_half_precision[ws2]"]
