#!/usr/bin/env bash
# Making a plain optimizer imports the compiler: torch 2.13.0, CPU build, Python 3.11.
#
# `import torch` and `import torch.distributed` leave torch._dynamo alone. The first torch.optim.SGD(...) of a process, which compiles
# nothing, imports it: some 800 modules, and about as many CPU seconds as `import torch` itself took. The next optimizer costs
# microseconds. So the first step of a training is slower by seconds in every rank that starts as a process of its own, and a process
# that ranks are forked from saves them that if it has made one import of torch._dynamo.
#
# Seen: 0 modules of torch._dynamo before, 93 after; 823 modules in all for the first optimizer, 0 for the second. The CPU time varies with
# the machine (0.76 s beside 0.86 s for importing torch) and is printed, not checked.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy 2> "$folder/pip.log" || { cat "$folder/pip.log"; exit 1; }
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import time

begin = time.process_time()
import torch
import torch.distributed

imported_s = time.process_time() - begin


def of_the_compiler() -> int:
    return sum(name.startswith("torch._dynamo") for name in sys.modules)


def made() -> tuple[int, float]:
    """Modules that are loaded when one more optimizer is made, and the CPU seconds that takes."""
    modules, start = len(sys.modules), time.process_time()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    return len(sys.modules) - modules, time.process_time() - start


before = of_the_compiler()
first, second = made(), made()
print(f"torch {torch.__version__}: importing it takes {imported_s:.2f} CPU s")
print(f"first optimizer: {first[0]} modules, {first[1]:.2f} CPU s; second: {second[0]} modules, {second[1]:.5f} CPU s")
print(f"modules of torch._dynamo: {before} before, {of_the_compiler()} after")
if before or of_the_compiler() < 50 or first[0] < 500 or second[0]:
    sys.exit("the behaviour has changed")
PYTHON
