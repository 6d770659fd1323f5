"""Models without a test file, on real ranks: those of transformers under their own plans, and what a function makes."""

from __future__ import annotations

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S

from pytest_distbench.layouts.tables import EQUAL, NOT_EQUAL, NOT_RUN, verdict_on
from pytest_distbench.report.page.content import again
from pytest_distbench.store.files import read_run_record

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(2 * LIMIT_S)]

MINE = """
import torch
import torch.distributed as dist
from torch.nn import functional


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x, labels):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return functional.cross_entropy(x, labels)


class Scaled(Net):
    def forward(self, x, labels):
        return super().forward(x, labels) * (1 + dist.get_rank())


def make(kind=Net):
    return kind(), {"x": torch.randn(8, 8), "labels": torch.randint(8, (8,))}


def wrong():
    return make(Scaled)


class Plain(torch.nn.Linear):
    def forward(self, x, labels):
        return functional.cross_entropy(super().forward(x), labels)


def plain():
    return make(lambda: Plain(8, 8))
"""

PLANS = """
import torch
import transformers


def make(lost=()):
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=8)
    config = transformers.AutoConfig.for_model("qwen3", vocab_size=64, num_key_value_heads=2, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model._tp_plan = {name: style for name, style in model._tp_plan.items() if name not in lost}
    tokens = torch.randint(64, (8, 16))
    return model, {"input_ids": tokens, "labels": tokens}


def without_a_line():
    return make(["model.layers.*.self_attn.k_norm"])
"""


def verdicts(pytester: pytest.Pytester, run_inside: RunInside, *arguments: str) -> dict[str, tuple[str, str]]:
    run_inside("--world-size=2", "--distbench-json=run.json", *arguments)
    results = read_run_record(pytester.path / "run.json").results
    return {result.nodeid.rpartition("::")[2]: verdict_on(result) for result in results}


def test_what_a_function_makes_is_compared(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makepyfile(mine=MINE)
    asked = "--distbench-model=mine.py::make,mine.py::wrong,mine.py::plain"
    chosen = "not plain and (ddp or fsdp2 or pipeline or from_one) or plain and (fsdp2 or checkpointing)"

    found = verdicts(pytester, run_inside, asked, "-k", chosen, "-n2")
    record = read_run_record(pytester.path / "run.json")
    [wrong] = [result for result in record.results if result.nodeid.endswith("::wrong[ddp-ws2]")]
    command = "pytest -k 'wrong[ddp-ws2]' --world-size 2 --distbench-model=mine.py::wrong"

    assert found["make[ddp-ws2]"] == found["make[fsdp2-ws2]"] == (EQUAL, "")
    assert found["make[pipeline-ws2]"][0] == NOT_RUN
    for layout, words in {"ddp": "the loss of step 1", "reshard_from_one": "the loss of step 3"}.items():
        verdict, sentence = found[f"wrong[{layout}-ws2]"]
        assert (verdict, words in sentence) == (NOT_EQUAL, True)
    assert found["plain[fsdp2-ws2]"] == (EQUAL, "")
    assert "needs blocks to compute again, and it has no ModuleList" in found["plain[checkpointing-ws2]"][1]
    assert again(wrong, record).replace("--world-size=2", "--world-size 2") == command


def test_a_model_of_a_library_has_its_own_plans(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytest.importorskip("transformers")

    found = verdicts(
        pytester, run_inside, "--distbench-model=transformers:mixtral,bert_,llava", "-k", "tensor_parallel or pipeline"
    )

    assert found["mixtral[tensor_parallel-ws2]"] == found["mixtral[pipeline-ws2]"] == (EQUAL, "")
    verdict, sentence = found["bert_[pipeline-ws2]"]
    assert verdict == "failed"
    assert "has no model bert_; did you mean bert" in sentence
    verdict, sentence = found["llava[pipeline-ws2]"]
    assert verdict == NOT_RUN
    assert sentence.endswith("llava: it takes more than tokens; its text part is transformers:llama")


def test_a_line_that_a_plan_has_lost_is_red_with_its_parameter(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    pytest.importorskip("transformers")
    pytester.makepyfile(plans=PLANS)
    asked = "--distbench-model=plans.py::make,plans.py::without_a_line"

    found = verdicts(pytester, run_inside, asked, "-k", "tensor_parallel")

    assert found["make[tensor_parallel-ws2]"] == (EQUAL, "")
    verdict, sentence = found["without_a_line[tensor_parallel-ws2]"]
    assert verdict == NOT_EQUAL
    assert "self_attn.k_norm.weight in step 1 deviates first" in sentence
    assert "ranks hold different gradients, so it was not reduced" in sentence
