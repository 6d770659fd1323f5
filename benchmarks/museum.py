"""Which published silent bugs of elastic and resumed training are named here, and by which row? Plants them one by one.

    python benchmarks/museum.py [--clean CHANGES] [--json FILE] [EXHIBIT ... | none]

Each exhibit is a bug that somebody has published, planted anew in ``benchmarks/museum/training.py``, a training on two
gloo ranks whose membership changes. It runs once, without a baseline. Printed per exhibit: its thread, the rows that
are red, the seconds and the words. Then the healthy training goes through 200 changes of membership, or as many as
``--clean`` says, over several jobs; with exhibits named, through none. Exit code 1 unless each exhibit is named by the
row that should name it, and by no other exact row but what follows from it, and no clean change is alarmed about. No
GPU; two minutes for all exhibits on two quiet cores, and five for 200 changes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measuring import elastic_plan

from pytest_distbench.elastic import crash, draw, join
from pytest_distbench.elastic.engines import ENGINES
from pytest_distbench.elastic.launch import launch_elastic
from pytest_distbench.elastic.measures.continuity import ORDER
from pytest_distbench.elastic.measures.ledger import MOMENTS, PARAMETERS, RANDOM, RATE, REPLICAS, STATE, STEP
from pytest_distbench.elastic.records import Change
from pytest_distbench.launch.supervise import Side
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import SAID
from pytest_distbench.records.plan import BodyReference
from pytest_distbench.records.record import replace
from pytest_distbench.report import layout
from pytest_distbench.units import format_seconds

TRAINING = Path(__file__).resolve().parent / "museum" / "training.py"
EPOCH_STEPS = 24
"""Of an epoch on two nodes, as ``training.py`` has it."""
CHANGES_OF_A_JOB = 40
"""Clean changes that one job goes through."""
STEPS_BETWEEN = 16
"""Two clean changes."""
BACKSTOP = "learning_lost"
"""It may be red with any exhibit: what was learned is lost by many of them, and by how much is chance."""
WIDTH = 70
"""Of the words that are printed."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A bug that somebody has published.

    Attributes:
        name: key of ``PLANTED`` in ``training.py``, which says how it is planted.
        thread: where it was published.
        published: what went wrong there.
        row: the metric that must name it, or the words that a failed launch begins with.
        follows: other exact metrics that may be red with it.
        changes: of the membership.
        start: nodes at the beginning.
        checkpoint_every: steps.
        epochs: of the training.
        lr_per_node: the learning rate follows the number of nodes.
    """

    name: str
    thread: str
    published: str
    row: str
    follows: tuple[str, ...] = ()
    changes: tuple[Change, ...] = (crash(at_step=25, slot=1),)
    start: int = 2
    checkpoint_every: int = 10
    epochs: int = 3
    lr_per_node: bool = False


RESUME = "Wrong epoch on resume"
"""Not a metric: the launch fails by this name."""
GITHUB = "https://github.com/"
EXHIBITS = (
    Exhibit(
        name="rng of another rank",
        thread=GITHUB + "NVIDIA/Megatron-LM/pull/6858",
        published="One rank's random streams were written as everybody's copy: after a resume 252 of 256 ranks of a "
        "120B model drew from another rank's stream, and were independent no more.",
        row=RANDOM,
    ),
    Exhibit(
        name="rng drawn once more",
        thread=GITHUB + "NVIDIA-NeMo/Megatron-Bridge/issues/5257",
        published="A data loader's iterator, made behind the load, draws its seed from the global generator: each "
        "resumed rank is one draw ahead of the run that wrote the checkpoint.",
        row=RANDOM,
    ),
    Exhibit(
        name="rng seeded again",
        thread=GITHUB + "modelscope/ms-swift/pull/9935",
        published="Setting up the resampling behind the load seeded the process again: the restored streams began "
        "from their first number.",
        row=RANDOM,
    ),
    Exhibit(
        name="samples seen twice",
        thread=GITHUB + "huggingface/accelerate/issues/3938",
        published="The loader's place was corrected for the number of processes although it was right: each rank of a "
        "resumed run trained on its last batch again.",
        row="samples_repeated",
        follows=("samples_skipped",),
    ),
    Exhibit(
        name="samples lost from 1 to 2",
        thread=GITHUB + "huggingface/transformers/issues/40245",
        published="The place was kept in batches of a worker: one worker took samples 0 to 3, and the two that went "
        "on began with 8 and 12; 4 to 7 were never trained on.",
        row="samples_skipped",
        start=1,
        changes=(join(at_step=15),),
        follows=("samples_repeated",),
    ),
    Exhibit(
        name="data ahead of the model",
        thread=GITHUB + "pytorch/torchtitan/pull/4686",
        published="Model and loader each looked for their newest checkpoint: the model went on from step 500 and the "
        "data from step 501.",
        row="samples_skipped",
        follows=("samples_repeated",),
    ),
    Exhibit(
        name="epoch 0 order",
        thread=GITHUB + "Lightning-AI/pytorch-lightning/issues/21938",
        published="The iterator prefetches before the sampler is told its epoch: the first epoch behind a resume has "
        "the order of epoch 0, in each restart again.",
        row=ORDER,
        checkpoint_every=EPOCH_STEPS,
        changes=(crash(at_step=EPOCH_STEPS + 4, slot=1),),
    ),
    Exhibit(
        name="duplicate in a batch",
        thread=GITHUB + "NVIDIA-NeMo/Megatron-Bridge/pull/5944",
        published="Ranks dropped the tail of an epoch each for itself: one was an epoch behind the others, and a "
        "global batch had a sample twice.",
        row="samples_repeated",
        follows=("samples_skipped",),
    ),
    Exhibit(
        name="offset in each epoch",
        thread=GITHUB + "NVIDIA-NeMo/Megatron-Bridge/pull/4601",
        published="The place of a resume in the middle of an epoch was applied in each later epoch too: their "
        "beginning was skipped, and their tail trained on again.",
        row="samples_skipped",
        follows=("samples_repeated",),
    ),
    Exhibit(
        name="next epoch skipped",
        thread=GITHUB + "verl-project/verl/issues/7401",
        published="A run that resumed from a checkpoint at an epoch's end skipped the next epoch, and ended well with "
        "less training than was asked for.",
        row=RESUME,
        checkpoint_every=EPOCH_STEPS,
        changes=(crash(at_step=EPOCH_STEPS + 4, slot=1),),
    ),
    Exhibit(
        name="moments zeroed",
        thread=GITHUB + "KempnerInstitute/KempnerForge/pull/115",
        published="A new AdamW has no moments before its first step, so the load found nothing to fill, and dropped "
        "those of the checkpoint: they began at zero at every resume.",
        row=MOMENTS,
    ),
    Exhibit(
        name="adam step dropped",
        thread=GITHUB + "NVIDIA-NeMo/Megatron-Bridge/pull/3832",
        published="A work-around skipped the part of the optimizer's state that all share: moments came back, Adam's "
        "count of steps and the gradient scaler did not.",
        row=STEP,
    ),
    Exhibit(
        name="adam step of one rank",
        thread=GITHUB + "NVIDIA/TransformerEngine/issues/1986",
        published="A group of parameters that a rank has none of counts no steps there: at a resume others took that "
        "count, 1 in place of 2641, and with it a wrong correction of the bias.",
        row=STEP,
        follows=(REPLICAS,),
    ),
    Exhibit(
        name="stale lr of a joiner",
        thread=GITHUB + "pytorch/torchtitan/pull/4598",
        published="A replica that joined took the learning rate from a cached state: gradients were equal, rates were "
        "not, and weights that must be equal drifted apart.",
        row=RATE,
        start=1,
        changes=(join(at_step=15),),
        follows=(REPLICAS,),
    ),
    Exhibit(
        name="lr schedule by epoch",
        thread=GITHUB + "vllm-project/speculators/pull/900",
        published="A schedule that counts steps was resumed with the number of the epoch: the rate went back to the "
        "beginning of the run.",
        row=RATE,
        follows=(STATE,),
    ),
    Exhibit(
        name="older checkpoint at retry",
        thread=GITHUB + "NVIDIA-NeMo/Megatron-Bridge/pull/4758",
        published="The file that names the newest checkpoint was read once per process: a second retry in the same "
        "process went back to the checkpoint of the first one.",
        row=RESUME,
        changes=(crash(at_step=15, slot=1), crash(at_step=25, slot=1)),
    ),
    Exhibit(
        name="corrupt replica",
        thread=GITHUB + "NVIDIA/Megatron-LM/issues/5281",
        published="A node took its checkpoint from a peer's copy, which nobody checked: the loss was NaN three steps "
        "behind the load, and the job was restarted 44 times into the same end.",
        row=MOMENTS,
        follows=(REPLICAS,),
    ),
    Exhibit(
        name="average in place of weights",
        thread=GITHUB + "atomistic-machine-learning/schnetpack/pull/785",
        published="Checkpoints were written while the model held the average of its weights for validation: a resumed "
        "run trained on from the average.",
        row=PARAMETERS,
    ),
    Exhibit(
        name="buffers not built",
        thread=GITHUB + "hiyouga/LlamaFactory/pull/10820",
        published="A model that was made without memory got its parameters from the checkpoint, and its frequencies of "
        "rotary embeddings, which are in none, from nowhere: it trained on with whatever lay there.",
        row=PARAMETERS,
    ),
)


@dataclass
class Shown:
    """What became of an exhibit, or of a clean job.

    Attributes:
        name: of it.
        red: exact rows beyond their bounds, or the first words of why the launch failed.
        seconds: that the launch took.
        words: that say what is wrong.
        changes: of the membership that were carried out.
        trouble: what is not as it should be; empty: all is.
    """

    name: str
    thread: str = ""
    red: list[str] = field(default_factory=list)
    seconds: float = 0.0
    words: str = ""
    changes: int = 0
    trouble: str = ""


def run(exhibit: Exhibit, folder: Path, *, planted: str, seed: int = 0) -> LaunchRecord:
    """Launch the training once.

    Args:
        exhibit: whose changes, checkpoints and epochs are used.
        folder: for the launch's files.
        planted: key of ``PLANTED``; empty: the healthy training.
        seed: of the training.
    """
    own = folder / f"{len(list(folder.iterdir()))}"
    own.mkdir()
    plan = elastic_plan(
        own,
        "fast",
        exhibit.changes,
        nodes=(1, 2),
        start=exhibit.start,
        seed=seed,
        checkpoint_every=exhibit.checkpoint_every,
        body=BodyReference(file=str(TRAINING), function="train"),
        params={"exhibit": planted, "epochs": exhibit.epochs, "lr_per_node": exhibit.lr_per_node},
    )
    return launch_elastic(plan, Side())


def red_rows(record: LaunchRecord) -> list[str]:
    """Metrics beyond a bound of theirs; what a failed launch says."""
    if record.outcome != "passed":
        return [record.reason.partition(":")[0]]
    return [m.key for m in record.measurements if not all(bound.holds(m.value) for bound in m.bounds)]


def words_of(record: LaunchRecord, row: str) -> str:
    """What the run says of a red row."""
    if record.outcome != "passed":
        return record.reason
    return next((str(m.facts.get(SAID, "")) for m in record.measurements if m.key == row), "")


def trouble_with(exhibit: Exhibit, red: Sequence[str]) -> str:
    """What is wrong with how an exhibit was named; empty: nothing is.

    Args:
        exhibit: that was run.
        red: as :func:`red_rows` has found.
    """
    if exhibit.row not in red:
        return f"not named by {exhibit.row}"
    others = [row for row in red if row not in (exhibit.row, *exhibit.follows, BACKSTOP)]
    return f"also red: {', '.join(others)}" if others else ""


def show(exhibit: Exhibit, folder: Path) -> Shown:
    """Run an exhibit, and see who names it."""
    record = run(exhibit, folder, planted=exhibit.name)
    red = red_rows(record)
    changes = sum(event.what == "change" for event in record.events)
    words, trouble = words_of(record, exhibit.row), trouble_with(exhibit, red)
    return Shown(exhibit.name, exhibit.thread, red, record.wall_s, words, changes, trouble)


def clean_job(number: int, changes: int) -> Exhibit:
    """The healthy training, with changes that a seed draws. Every second job has a learning rate per node."""
    drawn = draw(number, nodes=(1, 2), changes=changes, period_s=1.0)
    return Exhibit(
        name=f"clean {number}",
        thread="",
        published="",
        row="",
        changes=tuple(replace(change, at_s=None, at_step=STEPS_BETWEEN * (i + 1)) for i, change in enumerate(drawn)),
        checkpoint_every=STEPS_BETWEEN // 2,
        epochs=STEPS_BETWEEN * (changes + 2) // EPOCH_STEPS + 1,
        lr_per_node=number % 2 == 1,
    )


def go_through(job: Exhibit, folder: Path, seed: int) -> Shown:
    """Run a clean job, and see whether anything alarms."""
    record = run(job, folder, planted="", seed=seed)
    red = red_rows(record)
    kinds = Counter(change.kind for change in job.changes)
    changes = sum(event.what == "change" for event in record.events)
    words = record.reason or ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return Shown(job.name, "", red, record.wall_s, words, changes, "alarm" if red else "")


def row_of(shown: Shown) -> list[str]:
    return [
        shown.name,
        re.sub(r".+/(.+)/(issues|pull)/", r"\1#", shown.thread),
        "wrong" if shown.trouble else "named" if shown.thread else "quiet",
        ", ".join(shown.red) or "-",
        f"{shown.seconds:.1f}",
        shown.trouble or shown.words[:WIDTH],
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("exhibits", nargs="*", metavar="EXHIBIT", help="default: all; none: none")
    parser.add_argument("--clean", type=int, metavar="CHANGES", help="default: 200; with exhibits named: none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    options = parser.parse_args()
    if problem := ENGINES["fast"].problem():
        raise SystemExit(f"engine fast: {problem}")
    if unknown := set(options.exhibits) - {"none", *(exhibit.name for exhibit in EXHIBITS)}:
        raise SystemExit(
            f"no such exhibit: {', '.join(sorted(unknown))}; there are {', '.join(e.name for e in EXHIBITS)}"
        )
    wanted = [e for e in EXHIBITS if e.name in options.exhibits or not options.exhibits]
    clean = options.clean if options.clean is not None else 200 * (options.exhibits in ([], ["none"]))
    found: list[Shown] = []
    header = ["exhibit", "thread", "verdict", "red rows", "s", "words"]

    def tell(shown: Shown) -> None:
        found.append(shown)
        print(*layout(header, [row_of(shown)], left=6)[len(found) > 1 :], sep="\n", flush=True)

    with tempfile.TemporaryDirectory(prefix="distbench-museum-", ignore_cleanup_errors=True) as name:
        for exhibit in wanted:
            tell(show(exhibit, Path(name)))
        for number, first in enumerate(range(0, clean, CHANGES_OF_A_JOB)):
            tell(go_through(clean_job(number, min(CHANGES_OF_A_JOB, clean - first)), Path(name), number))
    print(*layout(header, [row_of(shown) for shown in found], left=6), sep="\n")
    exhibits, jobs = [s for s in found if s.thread], [s for s in found if not s.thread]
    if exhibits:
        named = sum(not s.trouble for s in exhibits)
        seconds = sum(s.seconds for s in exhibits)
        print(f"{named} of {len(exhibits)} exhibits named by their row, in {format_seconds(seconds)}")
    if jobs:
        alarms = sum(bool(s.trouble) for s in jobs)
        print(
            f"{sum(s.changes for s in jobs)} clean changes in {len(jobs)} jobs, "
            f"{format_seconds(sum(s.seconds for s in jobs))}; alarms: {alarms or 'none'}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(shown) for shown in found], indent=1) + "\n")
    return 1 if any(shown.trouble for shown in found) else 0


if __name__ == "__main__":
    sys.exit(main())
