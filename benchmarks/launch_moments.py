"""Launches at random moments: while the parent of the ranks loads torch, imports what trainings need, or waits.

    python benchmarks/launch_moments.py [--launches 1000] [--parents 100] [--seed 1]

Every parent gets the same number of launches, of 1 to 4 ranks. The first comes at a random moment after the parent was
started, the others after random pauses, and one of them is the first that trains: for it the parent imports more before
it forks. *waited* counts launches that came while the parent was still loading. Exit code 1 unless all have passed.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
import uuid
from pathlib import Path

from measuring import BARRIER, BODIES, launched

from pytest_distbench.launch.starters import LauncherSetup
from pytest_distbench.launch.starters.warm import WarmLauncher

LOADING_S = 3.0  # longer than the import of torch takes on a quiet machine
PAUSE_S = 0.1


def main() -> None:
    """Launch and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--parents", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    each = options.launches // options.parents
    seconds: list[float] = []
    waited = trained = 0
    began = time.perf_counter()
    for _ in range(options.parents):
        with tempfile.TemporaryDirectory(prefix="distbench-") as name:
            loaded: list[float] = []
            setup = LauncherSetup(directory=Path(name), session=uuid.uuid4().hex, on_loaded=loaded.append)
            launcher = WarmLauncher(setup)
            launcher.prepare(dict(os.environ) | {"OMP_NUM_THREADS": "1"})
            trains = chance.randrange(each)
            for number in range(each):
                time.sleep(chance.uniform(0, LOADING_S if number == 0 else PAUSE_S))
                function, file = ("slowed_all_reduce", BODIES) if number == trains else ("barrier", BARRIER)
                ranks, start = chance.randint(1, 4), time.perf_counter()
                launched(launcher, Path(name), function, file=file, world_size=ranks, params={"factor": 0.0})
                seconds.append(time.perf_counter() - start)
                trained += number == trains
            waited += loaded[0] > PAUSE_S
            launcher.close()
    print(f"{len(seconds)} launches of {options.parents} parents passed in {time.perf_counter() - began:.0f} s:")
    print(f"{waited} waited for torch, {trained} for what trainings need; the longest took {max(seconds):.1f} s")


if __name__ == "__main__":
    main()
