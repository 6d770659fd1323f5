"""How long the store takes per entry, at 1,000, 10,000 and 100,000 entries: a flat row is linear.

    python benchmarks/store_speed.py [--entries 1000,10000] [--json OUT]

Each entry has five metrics of ten launches, as a small sweep has; ten cases a test. *import* writes every entry into an
empty store; the others are the shell commands too, run in this process. *diff* reads a second store with one entry in a
hundred slower; *accept* takes a run record of 1,000 slower cases into the store; *update* writes 300 entries as a test
run does, waiting for the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_distbench.commands.cli import main as distbench
from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult, ReferenceRecord, RunRecord
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.store.baselines import SCHEMA as BASELINE_SCHEMA
from pytest_distbench.store.baselines import BaselineFile, BaselineStore
from pytest_distbench.store.exchange import write_json
from pytest_distbench.store.run_record import SCHEMA, write_run_record

PLATFORM = "cpu-synthetic-2c"
CASES_PER_TEST = 10
SIZES = (1024, 16384, 65536, 1 << 20, 1 << 24)
POINT = "message_bytes"
ON_TWO = Conditions(world_size=2, backend="gloo", launcher="warm")
SOFTWARE = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "threads": "1"}
ACCEPTED = 1000
UPDATED = 300


def entry(i: int, factor: float = 1.0) -> BaselineEntry:
    metrics = {
        f"latency[{POINT}={size}]": BaselineMetric(
            better="lower",
            unit="s",
            launches=[value(size * factor, i + k) for k in range(10)],
        )
        for size in SIZES
    }
    return BaselineEntry(
        workload=case(i).workload,
        conditions=ON_TWO,
        software=SOFTWARE,
        metrics=metrics,
    )


def value(typical: float, i: int) -> float:
    return float(f"{typical * (1 + i % 17 / 100):.4g}")


def case(i: int) -> Case:
    test = f"suites/group{i // 1000}/test_sweep.py::test_sweep{i // CASES_PER_TEST}"
    case_id = f"case{i % CASES_PER_TEST}-ws2"
    return Case(test=test, id=case_id, conditions=ON_TWO, device="cpu")


def stored(i: int) -> BaselineFile:
    return BaselineFile(schema=BASELINE_SCHEMA, platform=PLATFORM, test=case(i).test, key=case(i).key, entry=entry(i))


def fill(folder: Path, numbers: range, factor: float = 1.0, *, sync: bool = False) -> None:
    store = BaselineStore(folder, PLATFORM)
    for i in numbers:
        store.write(case(i).test, case(i).key, entry(i, factor), sync=sync)


def measurement(size: int, i: int) -> Measurement:
    return Measurement(name="latency", unit="s", better="lower", value=value(2.0 * size, i), at={POINT: size})


def run_record(number: int) -> RunRecord:
    environment = Environment(platform=PLATFORM, device="synthetic", cores=2, software=SOFTWARE)
    results = []
    for i in range(number):
        launches = [
            LaunchRecord(
                index=k,
                outcome="passed",
                wall_s=0.1,
                measurements=[
                    Measurement(
                        name="latency", unit="s", better="lower", value=value(2.0 * size, i + k), at={POINT: size}
                    )
                    for size in SIZES
                ],
            )
            for k in range(10)
        ]
        verdicts = [Verdict(metric=key, kind="regressed", unit="s", better="lower") for key in entry(i).metrics]
        results.append(
            CaseResult(
                nodeid=f"{case(i).test}[{case(i).name}]",
                case=case(i),
                environment=environment,
                launches=launches,
                verdicts=verdicts,
                reference=ReferenceRecord(kind="stored", path="b"),
            )
        )
    return RunRecord(
        schema=SCHEMA, distbench="0", started="", duration_s=0.0, world_sizes=[2], gpu=False, results=results
    )


def timed(number: int, work: Callable[[], object]) -> tuple[float, float]:
    """Microseconds per entry: elapsed, and of this process's CPU."""
    begin, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return (time.perf_counter() - begin) * 1e6 / number, (time.process_time() - cpu) * 1e6 / number


def measure(number: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Each operation on a store of this many entries."""
    store, other, record, exported = folder / "a", folder / "b", folder / "run.json", folder / "exported.json"
    accepted = min(ACCEPTED, number)
    with exported.open("wb") as out:
        write_json((stored(i) for i in range(number)), out)
    write_run_record(record, run_record(accepted))

    def command(*arguments: str) -> Callable[[], int]:
        return lambda: distbench(["baseline", *arguments, "--baselines", str(store)])

    found = {"import": timed(number, command("import", str(exported)))}
    shutil.copytree(store, other, copy_function=os.link)
    fill(other, range(0, number, 100), 1.5)
    found["list"] = timed(number, command("list"))
    found["list -k"] = timed(number, command("list", "-k", "sweep7"))
    found["diff"] = timed(number, command("diff", str(other)))
    found["export"] = timed(number, command("export"))
    found["accept"] = timed(accepted, command("accept", str(record)))
    found["update"] = timed(UPDATED, lambda: fill(store, range(UPDATED), sync=True))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", default="1000,10000,100000", help="sizes of the store (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write {size: {operation: [elapsed, CPU]}}")
    options = parser.parse_args(arguments)
    sizes = [int(text) for text in options.entries.split(",")]
    table: dict[int, dict[str, tuple[float, float]]] = {}
    for number in sizes:
        folder = Path(tempfile.mkdtemp(prefix="store_speed"))
        try:
            table[number] = measure(number, folder)
        finally:
            shutil.rmtree(folder)
    for index, what in enumerate(("elapsed", "of CPU")):
        print(f"microseconds per entry, {what}")
        print("operation" + "".join(f"{number:>10}" for number in sizes) + f"{'last/first':>12}")
        for name in table[sizes[0]]:
            row = [table[number][name][index] for number in sizes]
            print(f"{name:<9}" + "".join(f"{value:>10.1f}" for value in row) + f"{row[-1] / row[0]:>12.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(table))


if __name__ == "__main__":
    main()
