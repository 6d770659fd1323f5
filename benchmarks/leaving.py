"""Do healthy scripts end, however they made their process groups? Hundreds of launches of each shape.

    python benchmarks/leaving.py [--launches 300] [SHAPE ...]

torch can hang at the end of a process that destroyed a gloo group, in some launches of a script and not in others
(``worker/membership.py`` has why, and what is done about it). Printed per shape: how many launches ended, and why the
first did not that did not. Exit code 1 unless all ended. 300 launches of each take about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from pathlib import Path

from measuring import launch_once

from pytest_distbench.launch.starters import LAUNCHERS, LauncherSetup
from pytest_distbench.records.plan import BodyReference, Ranks
from pytest_distbench.report import layout

TIMEOUT_S = 20.0

HEAD = "import torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
STEPS = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(15):
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""
DDP = "\n    model = DistributedDataParallel(torch.nn.Linear(64, 10))" + STEPS
MESH = "\n    from torch.distributed.device_mesh import init_device_mesh\n    mesh = init_device_mesh('cpu', (2,))"


def in_function(lines: str) -> str:
    return f"{HEAD}def main():\n    {lines.strip()}\nmain()\n"


def at_module_level(lines: str) -> str:
    return HEAD + lines.replace("\n    ", "\n").strip() + "\n"


BY_DEVICE = """
    backend = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() else "cpu:gloo"
    dist.init_process_group(backend)"""
SUBGROUP = """
    dist.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(64, 10), process_group=dist.new_group([0, 1]))"""
SHARDED = """
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Linear(64, 10)
    fully_shard(model, mesh=mesh)"""

SHAPES = {
    "named": in_function('dist.init_process_group("gloo")' + DDP),
    "default backend in a function": in_function("dist.init_process_group()" + DDP),
    "default backend at module level": at_module_level("dist.init_process_group()" + DDP),
    "a backend by device": in_function(BY_DEVICE + DDP),
    "subgroup": in_function(SUBGROUP + STEPS),
    "device mesh": in_function(MESH + DDP),
    "FSDP2": in_function(MESH + SHARDED + STEPS),
}
"""Scripts, by how they make their groups."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", choices=[*SHAPES, []], help=", ".join(SHAPES))
    parser.add_argument("--launches", type=int, default=300)
    options = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory(prefix="distbench-") as made:
        folder = Path(made)
        launcher = LAUNCHERS["warm"].make(LauncherSetup(directory=folder, session=uuid.uuid4().hex))
        script = folder / "train.py"
        work = Ranks(body=BodyReference(file=str(script)))
        try:
            for shape in options.shapes or SHAPES:
                script.write_text(SHAPES[shape])
                begin = time.monotonic()
                records = [launch_once(launcher, folder, work, timeout_s=TIMEOUT_S) for _ in range(options.launches)]
                reasons = [record.reason.partition("\n")[0] for record in records if record.outcome != "passed"]
                seconds = f"{time.monotonic() - begin:.0f}"
                table.append([shape, str(len(records)), str(len(records) - len(reasons)), seconds, *reasons[:1]])
                print(" | ".join(table[-1]), file=sys.stderr)
        finally:
            launcher.close()
    print("\n".join(layout(("groups made by", "launches", "ended", "s", ""), [[*row, ""][:5] for row in table])))
    return int(any(row[1] != row[2] for row in table))


if __name__ == "__main__":
    sys.exit(main())
