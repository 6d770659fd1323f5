"""Is a wrong tensor-parallel plan red? Plants ten faults in plans of ten models of transformers.

    python benchmarks/plan_faults.py [NAME ...]

A line of a plan is removed, added, or given another style; none raises an error. Expected words stand in the table
before a run. Printed per fault: whether it is red, whether the words name the place, and the sentence. Exit code 1
unless all are. Three minutes on two quiet cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from pytest_distbench.layouts.tables import NOT_EQUAL, verdict_on
from pytest_distbench.store.files import read_run_record


class Fault(NamedTuple):
    """A line of a model's plan, the style that it gets (empty: it is removed), and a word that names the place."""

    model: str
    line: str
    style: str
    place: str


_LAYER = "model.layers.*"
FAULTS = [
    Fault("qwen3", f"{_LAYER}.self_attn.q_norm", "", "q_norm"),
    Fault("qwen3_moe", f"{_LAYER}.self_attn.k_norm", "", "k_norm"),
    Fault("deepseek_v2", f"{_LAYER}.self_attn.kv_a_proj_with_mqa", "", "kv_a_proj_with_mqa"),
    Fault("longcat_flash", f"{_LAYER}.mlp.experts.identity_expert", "", "mlp"),
    Fault("mixtral", f"{_LAYER}.mlp.experts.gate_up_proj", "colwise", "mlp.experts"),
    Fault("glm4_moe", f"{_LAYER}.mlp.gate", "replicated_with_grad_allreduce", "mlp.gate"),
    Fault("llama", f"{_LAYER}.input_layernorm", "replicated_with_grad_allreduce", "input_layernorm"),
    Fault("cohere", f"{_LAYER}.mlp", "all_reduce", "mlp"),
    Fault("gemma2", f"{_LAYER}.post_attention_layernorm", "moe_identity_expert", "post_attention_layernorm"),
    Fault("granite", f"{_LAYER}.mlp.act_fn", "moe_identity_expert", "mlp"),
]
HEAD = """
import torch
from pytest_distbench.layouts.from_transformers import maker_of


def made(name, line, style):
    _, make = maker_of(name)
    model = make()
    assert style or line in model._tp_plan, (line, model._tp_plan)
    model._tp_plan = {key: each for key, each in model._tp_plan.items() if key != line}
    model._tp_plan |= {line: style} if style else {}
    tokens = torch.randint(3, 64, (8, 16))
    return model, {"input_ids": tokens, "labels": tokens}
"""


def main() -> int:
    faults = [fault for fault in FAULTS if len(sys.argv) == 1 or fault.model in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        functions = [f"\n\ndef {f.model}():\n    return made({f.model!r}, {f.line!r}, {f.style!r})\n" for f in faults]
        Path(folder, "faulty.py").write_text(HEAD + "".join(functions))
        models = ",".join(f"faulty.py::{fault.model}" for fault in faults)
        command = [sys.executable, "-m", "pytest", "-q", f"--distbench-model={models}", "-k", "tensor_parallel"]
        command += ["--world-size=2", "--distbench-json=run.json", "--rootdir", folder, "-p", "no:cacheprovider"]
        command += ["-o", "distbench_preload=pytest_distbench.layouts.from_transformers"]
        subprocess.run(command, check=False, cwd=folder, stdout=subprocess.DEVNULL)
        results = read_run_record(Path(folder, "run.json")).results
    found = {result.nodeid.partition("::")[2].partition("[")[0]: verdict_on(result) for result in results}
    is_good = True
    for fault in faults:
        verdict, sentence = found.get(fault.model, ("not run", "there is no result"))
        is_red, is_named = verdict == NOT_EQUAL, fault.place in sentence
        is_good &= is_red and is_named
        change = f"{fault.line}: {fault.style or 'removed'}"
        print(f"{'red' if is_red else verdict:9} {'named' if is_named else 'NOT NAMED':9} {fault.model}: {change}")
        print(f"          {sentence}")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
