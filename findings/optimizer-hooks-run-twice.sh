#!/usr/bin/env bash
# Hooks around an optimizer's step run once or twice for one step, depending on what else was made before: torch 2.13.0, CPU build, Python 3.11.
#
# register_optimizer_step_pre_hook, its post_hook, and the hooks of one optimizer are called by a wrapper that Optimizer.__init__ puts around
# the `step` of the object's own class. A class that overrides step and calls its base's has a wrapper of its own, and the base has one as
# soon as anybody in the process has made an optimizer of the base itself. So the same training calls each hook once per step, or twice, one
# inside the other, and a count of steps doubles when a library makes an ordinary SGD for itself.
#
# Seen: 1 call before, 2 after. A count that is to be right has to see that a step of the same optimizer has not ended.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy 2> "$folder/pip.log" || { cat "$folder/pip.log"; exit 1; }
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

calls = []
register_optimizer_step_pre_hook(lambda optimizer, *_: calls.append(type(optimizer).__name__))


class Mine(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


mine = Mine([torch.zeros(1, requires_grad=True)], lr=0.1)


def called() -> int:
    """Calls of the hook for one step."""
    calls.clear()
    mine.step()
    return len(calls)


before = called()
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
after = called()
print(f"torch {torch.__version__}: {before} call of the hook before an SGD was made, {after} after")
if (before, after) != (1, 2):
    sys.exit("the behaviour has changed")
PYTHON
