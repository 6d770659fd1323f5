"""What the words of a run mean: verdicts and their reasons, metrics with names of ours, and how launches fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.launch.diagnosis.texts import SIGNS
from pytest_distbench.records.metric import EVALUATED, EVALUATION_ENDS
from pytest_distbench.records.reasons import REASONS, VERDICTS, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A word, or the beginning of what is printed.

    Attributes:
        kind: ``verdict``, ``reason``, ``column``, ``metric`` or ``failure``.
        page: of the documentation, with its anchor.
        pattern: finds it in what was printed, in any case.
    """

    kind: str
    name: str
    means: str
    page: str
    next_step: str = ""
    pattern: re.Pattern[str]


def _metric(name: str, means: str, page: str) -> Entry:
    """A metric; the parts of its name in angle brackets are anything."""
    parts = re.split(r"<\w+>", name)
    pattern = r"[\w/.<>]+".join(map(re.escape, parts))
    return Entry(kind="metric", name=name, means=means, page=page, pattern=_whole(pattern))


def _failure(name: str, pattern: str, means: str, next_step: str, page: str = "failures.md#what-is-reported") -> Entry:
    return Entry(
        kind="failure",
        name=name,
        means=means,
        next_step=next_step,
        page=page,
        pattern=re.compile(pattern, re.IGNORECASE),
    )


def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w/]){pattern}(?![\w/])", re.IGNORECASE)


METRICS: Sequence[Entry] = (
    _metric("latency", "Time of one call of a collective, in seconds: of the slowest rank.", "collectives.md"),
    _metric("busbw", "What each link carries: the algorithm bandwidth times nccl-tests' factor.", "collectives.md"),
    _metric("algbw", "Size of the message divided by the time, as nccl-tests count it.", "collectives.md"),
    _metric(
        "wrong_elements", "Elements of results that are not what they have to be, over all ranks.", "collectives.md"
    ),
    _metric("supported", "1: the backend takes this type and operation; 0: it refuses them.", "collectives.md"),
    _metric("largest_message", "The largest message that fits into the memory there is.", "collectives.md"),
    _metric(
        "step_time",
        "Time of a step: of rank.goal, or as the test reads or times it.",
        "convergence.md",
    ),
    _metric("steps_to_<metric>", "Steps until an evaluation met the target; none: it was missed.", "convergence.md"),
    _metric("time_to_<metric>", "Seconds from the first step to that evaluation, as MLPerf counts.", "convergence.md"),
    _metric("final_<metric>", "The last evaluation of a goal, or what the test reads.", "convergence.md"),
    _metric(f"{EVALUATED}<metric>", "Every evaluation, one after the other; shown.", "convergence.md"),
    _metric(EVALUATION_ENDS, "Seconds from the first step to the end of each; shown.", "convergence.md"),
    _metric("loss_curve", "The first losses of a seeded training, compared step by step.", "convergence.md"),
    _metric("mean_loss", "Mean of the losses of the first steps.", "convergence.md"),
    _metric("samples_per_second", "Samples that all ranks together trained on in a second.", "scaling.md"),
    _metric("samples_per_step", "Samples of all ranks in one iteration; exact.", "scaling.md"),
    _metric("scaling_efficiency", "Rate on n workers, divided by n times the rate on one.", "scaling.md"),
    _metric("tokens_per_second", "Tokens that all ranks together trained on in a second.", "models.md"),
    _metric("mfu", "Model FLOP utilisation: the model's arithmetic, of what the GPU can do at best.", "gpus.md"),
    _metric("exposed_time", "Time of communication that no computing hides.", "communication.md"),
    _metric("overlap", "Share of the communication that computing hides.", "communication.md"),
    _metric("gradient_error", "Distance of compressed gradients from exact ones, relative.", "communication.md"),
    _metric("gradient_bytes", "Bytes of gradients that a rank sends in a step; exact.", "communication.md"),
    _metric("load_share", "Share of the time in which the rank waited for its next batch.", "input.md"),
    _metric("cpu_utilisation", "Share of the CPUs at hand that was busy.", "input.md"),
    _metric("gpu_utilisation", "Share of time in which a kernel ran, of the least busy GPU.", "input.md"),
    _metric("wall_time", "Of a script or a command, from its start to its end.", "scripts.md"),
    _metric("peak_memory", "The most memory that a rank had, of the rank that had most.", "verdicts.md"),
    _metric("cpu_throttled", "Share of its periods in which a CPU quota stopped a rank.", "scaling.md"),
    _metric("network_rate", "What a chosen network carries between two hosts, by a probe of TCP alone.", "networks.md"),
    _metric("network_round_trip", "The time of a byte there and back over it, by the same probe.", "networks.md"),
    _metric("fingerprint", "Which collectives an iteration sends, how many, how large; exact.", "fingerprints.md"),
    _metric("phase/<name>", "Time of a phase of an iteration, in seconds.", "phases.md"),
    _metric("goodput", "Share of the nodes' time that went into steps that counted.", "elastic.md"),
    _metric("lost_fraction", "Share of an elastic job's time in which it stood still.", "elastic.md"),
    _metric("stall", "Time without a step around a change of membership.", "elastic.md"),
    _metric("recovery", "Time from a change of membership to the next step.", "elastic.md"),
    _metric("steps_redone", "Steps that were taken once more after a change.", "elastic.md"),
    _metric("samples_skipped", "Samples of an epoch that no rank was given.", "elastic.md"),
    _metric("samples_repeated", "Samples of an epoch that were given more than once.", "elastic.md"),
    _metric("learning_lost", "Share of what had been learned that a load lost.", "elastic.md"),
)
"""That the plugin names. A name that stands here in no other sense is one that a body recorded."""

_ALSO = {
    "regressed": r"[+-][\d.,]+ % .*\(threshold|(above|below) (its|the) bound",
    "new": r"no baseline|measured, not judged",
}
"""What else a run prints of a verdict."""

COLUMNS: Sequence[Entry] = tuple(
    Entry(kind="column", name=name, means=means, page=page, pattern=_whole(re.escape(name)))
    for name, means, page in (
        ("this run", "The median of the launches, each at its 25th percentile on the fast side.", "verdicts.md"),
        ("baseline", "The same of the launches that are stored.", "baselines.md"),
        ("change", "What is judged; of the fastest iterations where the case says so.", "verdicts.md"),
        (
            "threshold",
            "The change that fails this time: never below the tolerance, wider with noise.",
            "verdicts.md",
        ),
        ("n", "Launches that it was made of.", "verdicts.md"),
        ("MDE", "Minimum detectable effect: the smallest slowdown detected with 90 % power.", "sensitivity.md"),
        ("noise", "Standard deviation between launches, as a share of their mean.", "verdicts.md"),
        (
            "against itself",
            "How far that revision differed from itself meanwhile: the noise.",
            "verdicts.md",
        ),
    )
)
"""Of the tables of a case."""

FAILURES: Sequence[Entry] = (
    _failure(
        "hung in ...",
        r"\bhung\b",
        "A rank did not come to its end in time. The ranks that came less far than the others are named first.",
        "look at the line at which it stands; --distbench-timeout gives more time, --distbench-attach RANK a terminal",
    ),
    _failure(
        "deadlock: ...",
        r"\bdeadlock\b|ended without the collective|alone wait(s|ed) in",
        "Ranks wait in collectives of which another rank has called another one, or none.",
        "compare the places that are named: a branch that depends on the rank, or on data, is the usual cause",
    ),
    _failure(
        "ranks disagree: ...",
        r"ranks disagree",
        "Some ranks skipped the test, and others did not.",
        "decide it in the test, before the launch, or from what all ranks know",
    ),
    _failure(
        "rank N raised ...",
        r"\braised \w+",
        "The body raised in this rank. Ranks that failed because of it are shown after it.",
        "its traceback stands below; --distbench-attach N runs that rank under a debugger",
    ),
    _failure(
        "rank N killed by ...",
        r"\bkilled by SIG",
        "The process was ended by a signal. Of SIGKILL it is told whether the kernel ran out of memory meanwhile.",
        "SIGSEGV, SIGABRT: the stack in the log of the rank; SIGKILL: free memory, or whoever else kills processes",
    ),
    _failure(
        "rank N exit code ...",
        r"\bexit code \d",
        "The process ended by itself and reported nothing: os._exit(), or an exit of a library.",
        "look into the log of the rank, whose path the failure prints",
    ),
    _failure(
        "the launcher failed: ...",
        r"launcher failed",
        "What starts the ranks, their parent or torchrun, was killed or could not start.",
        "run it again: the next launch starts a new one; if it stays, --distbench-launcher=torchrun",
    ),
    _failure(
        "cannot write its report",
        r"cannot write its report",
        "The rank measured, and could not hand over what it had: a full disk, or a removed folder.",
        "make room where TMPDIR lies",
    ),
    _failure(
        "waiting for ...",
        r"waiting( since \d+ min)? for |waited \d+ min for ",
        "Another pytest measures on this machine, and the two would disturb each other.",
        "wait, or let them share the host: --distbench-share=host",
        "gpus.md#which-gpus-a-run-gets",
    ),
    *(
        Entry(
            kind="failure",
            name=sign.meaning,
            means=f"{sign.meaning[:1].upper()}{sign.meaning[1:]}. Torch, NCCL or CUDA said so to a rank.",
            next_step=sign.advice,
            page="failures.md#under-nccl",
            pattern=re.compile(f"{re.escape(sign.meaning)}|{sign.text}", re.IGNORECASE),
        )
        for sign in SIGNS
        if sign.meaning
    ),
)
"""The first words of failures, and those of torch, NCCL and CUDA that are known."""


def entries() -> list[Entry]:
    verdicts = [
        Entry(
            kind="verdict",
            name=name,
            means=row.means,
            next_step=row.next_step,
            page="verdicts.md#verdicts",
            pattern=re.compile("|".join(_printed(name, row)), re.IGNORECASE | re.MULTILINE),
        )
        for name, row in VERDICTS.items()
    ]
    reasons = [
        Entry(
            kind="reason",
            name=code,
            means=f"{row.means} Verdict: {row.verdict}.",
            next_step=row.next_step,
            page="verdicts.md#verdicts",
            pattern=re.compile(rf"^\s*{code}\s*$"),
        )
        for code, row in REASONS.items()
    ]
    return [*verdicts, *reasons, *COLUMNS, *METRICS, *FAILURES]


def _printed(name: str, row: Reason) -> Iterator[str]:
    """What a run prints of a verdict: its name, the sign before its rows, and more."""
    yield _whole(re.escape(name)).pattern
    if row.mark.strip():
        yield rf"^{re.escape(row.mark)}(?=\s|$)"
    if name in _ALSO:
        yield _ALSO[name]


def explain(text: str) -> list[Entry]:
    return [entry for entry in entries() if entry.pattern.search(text)]
