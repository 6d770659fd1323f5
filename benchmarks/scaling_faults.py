"""Which faults of a distributed training do the scaling suites find? Plants them one by one in ``suites/scaling``.

    python benchmarks/scaling_faults.py [--faults NAMES]

A repository of its own has the suites with their baselines, recorded and committed; a fault is a change that is not
committed, so what the clock makes doubtful runs in turns with the commit, as for every user. Printed per fault: the
test and its seconds, what caught it, and the first line that says so. The healthy suites come first and last and are
to pass; a slow loader is to leave synthetic input alone. Exit code 1 unless all is as it should. A quarter of an hour
on two quiet cores. What needs a GPU is shown on the made-up device of our tests, in made-up time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from repository import ROOT, Repository, end_by_sigterm_too

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.report.verdicts import cause_lines
from pytest_distbench.workloads.data import cifar10

PLANTED = "planted_in_scaling.py"
IMPORT = f"""
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import {PLANTED.removesuffix(".py")}
"""
DATA = "data"
STEP, PACKED, INPUT = "test_weak and mobilenet", "test_packed", "test_input and (synthetic or real)"
HEADER = ("fault", "test", "seconds", "caught by", "told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        name: of the function that plants it; empty: nothing is planted.
        tests: that run, as ``-k`` chooses them.
        told: what the output has to say.
        spares: a case that has to pass.
    """

    name: str
    tests: str
    told: str = ""
    spares: str = ""


HEALTHY = Fault(name="", tests=f"{STEP} or {PACKED} or {INPUT}")
FAULTS = (
    Fault(name="slow_rank", tests=STEP, told="rank 1"),
    Fault(name="slow_loader", tests=INPUT, told="phase step/load", spares="test_input[synthetic"),
    Fault(name="extra_barrier", tests=STEP, told="barrier"),
    Fault(name="all_reduce_per_tensor", tests=STEP, told="all_reduce"),
    Fault(name="unsynchronised_layer", tests=STEP, told="all_reduce"),
    Fault(name="sleep_in_the_optimizer", tests=STEP, told="phase step/optimizer"),
    Fault(name="one_more_tensor", tests=STEP, told="tensors"),
    Fault(name="other_threads_of_one_rank", tests=STEP, told="different numbers of threads"),
    Fault(name="half_a_batch", tests=STEP, told="loss_curve: diverges"),
    Fault(name="one_shard", tests=INPUT, told="loss_curve: diverges", spares="test_input[synthetic"),
    Fault(name="compression_off", tests=PACKED, told="all_reduce"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run said of a fault."""

    fault: Fault
    seconds: float
    output: str
    failed: list[CaseResult]

    @property
    def is_right(self) -> bool:
        """Whether the right thing failed, and the right thing was said."""
        if not self.fault.name:
            return not self.failed and " failed" not in self.output
        spared = self.fault.spares and any(result.case.title.startswith(self.fault.spares) for result in self.failed)
        return " failed" in self.output and self.fault.told in self.output and not spared

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table prints it."""
        lines = [line for result in self.failed for line in (result.headline, *filter(None, cause_lines(result)))]
        told = [line for line in [*lines, *self.output.splitlines()] if self.fault.told and self.fault.told in line]
        by = self.failed[0].case.title if self.failed else "the test" if " failed" in self.output else "nothing"
        first = told[0].strip() if told else (lines[0] if lines else "")
        mark = "" if self.is_right else "WRONG: "
        return (self.fault.name or "healthy", self.fault.tests, f"{self.seconds:.0f}", mark + by, first)


def make(folder: Path) -> Repository:
    """The suites, with what plants faults, and generated files where CIFAR-10 would lie."""
    repository = Repository(folder, [ROOT / name for name in ("suites", "pyproject.toml", "conftest.py")])
    suites = folder / "suites" / "scaling"
    (suites / PLANTED).write_text((ROOT / "benchmarks" / PLANTED).read_text())
    for name in ("convolutional.py", "reading.py"):
        with (suites / name).open("a") as body:
            body.write(IMPORT)
    data = folder / DATA
    data.mkdir()
    for name, content in cifar10.generate_noise(1024, seed=0):
        (data / name).write_bytes(content)
    return repository


def run(repository: Repository, fault: Fault, *options: str) -> Found:
    """One run of pytest with a fault planted."""
    code = (ROOT / "benchmarks" / PLANTED).read_text()
    path = repository.folder / "suites" / "scaling" / PLANTED
    path.write_text(code.replace('FAULT = ""', f'FAULT = "{fault.name}"'))
    start = time.monotonic()
    always = ["suites/scaling", "--distbench-full", f"--distbench-data={DATA}", "-k", fault.tests]
    results = repository.pytest(*always, *options)
    failed = [result for result in results if result.outcome == "failed"]
    return Found(fault=fault, seconds=time.monotonic() - start, output=repository.output, failed=failed)


def host_synchronisation() -> tuple[float, float]:
    """Seconds of a step whose kernels take 4 ms and the host 2 ms: as it should be, and with a wait in every step."""
    sys.path.append(str(ROOT / "tests"))
    from support.ranks import make_rank
    from support.virtual_cuda import VirtualCuda

    def step_s(*, waits: bool) -> float:
        with pytest.MonkeyPatch.context() as patch:
            cuda = VirtualCuda(patch)
            rank = make_rank(device="cuda")
            for _ in rank.timed("step", warmup=5, iterations=20):
                cuda.launch(2e-3)
                cuda.compute(1e-3)
                if waits:
                    cuda.device.current.synchronize()
                cuda.compute(1e-3)
                cuda.launch(2e-3)
            return float(rank.notebook.observations[0].values[-1])

    return step_s(waits=False), step_s(waits=True)


def main() -> int:
    """Plant, print, and say by the exit code whether all were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--faults", metavar="NAMES", help=f"only these: {', '.join(names)}")
    chosen = parser.parse_args().faults
    wanted = names if chosen is None else chosen.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"--faults: there is no {', '.join(sorted(unknown))}; wanted some of {', '.join(names)}")
    faults = [fault for fault in FAULTS if fault.name in wanted]
    end_by_sigterm_too()
    rows = []
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        repository = make(Path(name) / "project")
        repository.commit("the code")
        run(repository, HEALTHY, "--distbench-update=all")
        repository.commit("baselines")
        for fault in (HEALTHY, *faults, HEALTHY):
            found = run(repository, fault)
            rows.append(found)
            print(f"{found.cells[0]}: {found.cells[3]}, {found.cells[2]} s", file=sys.stderr, flush=True)
    print("\n".join(layout(HEADER, [found.cells for found in rows])))
    usual, waiting = host_synchronisation()
    print(f"\na wait of the host in every step, on the made-up device: {usual * 1e3:.1f} ms -> {waiting * 1e3:.1f} ms")
    return 0 if all(found.is_right for found in rows) and waiting > 1.15 * usual else 1


if __name__ == "__main__":
    sys.exit(main())
