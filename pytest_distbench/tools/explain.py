"""``distbench explain``: what the words of a run mean: verdicts, reasons, terms, metrics and failures."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.commands import Command
from pytest_distbench.errors import DistbenchError, show
from pytest_distbench.launch.diagnosis.texts import SIGNS
from pytest_distbench.records.metric import EVALUATED, EVALUATION_ENDS
from pytest_distbench.records.reasons import REASONS, VERDICTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A word, or the beginning of what is printed.

    Attributes:
        kind: ``line``, ``verdict``, ``reason``, ``word``, ``metric`` or ``failure``.
        page: of the documentation, with its anchor: what it says beyond that.
        pattern: finds it in a line that was printed, in any case.
        also: other names of it.
    """

    kind: str
    name: str
    means: str
    page: str
    next_step: str = ""
    pattern: re.Pattern[str]
    also: tuple[str, ...] = ()

    def is_called(self, text: str) -> bool:
        return text.casefold() in (self.name.casefold(), *map(str.casefold, self.also))


def _metric(name: str, means: str, page: str) -> Entry:
    """A metric; the parts of its name in angle brackets are anything."""
    parts = re.split(r"<\w+>", name)
    pattern = r"[\w/.<>]+".join(map(re.escape, parts))
    return Entry(kind="metric", name=name, means=means, page=page, pattern=_whole(pattern))


def _word(names: str, means: str, page: str, next_step: str = "") -> Entry:
    """A word with its other names, behind bars."""
    name, *also = names.split("|")
    pattern = _whole(rf"(?:{'|'.join(map(re.escape, [name, *also]))})s?")
    return Entry(kind="word", name=name, means=means, page=page, next_step=next_step, pattern=pattern, also=tuple(also))


def _failure(names: str, pattern: str, means: str, next_step: str, page: str = "triage.md#what-is-reported") -> Entry:
    """A failure; its other names stand behind bars."""
    name, *also = names.split("|")
    return Entry(
        kind="failure",
        name=name,
        also=tuple(also),
        means=means,
        next_step=next_step,
        page=page,
        pattern=re.compile(pattern, re.IGNORECASE),
    )


def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w/]){pattern}(?![\w/])", re.IGNORECASE)


METRICS: Sequence[Entry] = (
    _metric("latency", "Seconds of one call of a collective, on the slowest rank.", "collectives.md"),
    _metric("busbw", "Bus bandwidth: algbw times the factor of nccl-tests.", "collectives.md"),
    _metric("algbw", "Algorithm bandwidth: message size divided by time.", "collectives.md"),
    _metric("wrong_elements", "Wrong elements in the results, over all ranks.", "collectives.md"),
    _metric("supported", "1: the backend supports this type and operation; else 0.", "collectives.md"),
    _metric("largest_message", "Largest message that fits into the memory.", "collectives.md"),
    _metric("step_time", "Seconds of a training step.", "convergence.md"),
    _metric("steps_to_<metric>", "Steps until an evaluation met the target.", "convergence.md"),
    _metric("time_to_<metric>", "Seconds from the first step to that evaluation.", "convergence.md"),
    _metric("final_<metric>", "Result of the last evaluation.", "convergence.md"),
    _metric(f"{EVALUATED}<metric>", "Results of all evaluations, in order.", "convergence.md"),
    _metric(EVALUATION_ENDS, "Seconds from the first step to each evaluation's end.", "convergence.md"),
    _metric("loss_curve", "First losses of a seeded training, compared step by step.", "convergence.md"),
    _metric("mean_loss", "Mean of the losses of the first steps.", "convergence.md"),
    _metric("samples_per_second", "Samples of all ranks in a second.", "scaling.md"),
    _metric("samples_per_step", "Samples of all ranks in one iteration; exact.", "scaling.md"),
    _metric("scaling_efficiency", "Rate of n workers, divided by n times the rate of one.", "scaling.md"),
    _metric("tokens_per_second", "Tokens of all ranks in a second.", "trainings.md#models"),
    _metric("mfu", "Model FLOP utilisation: the model's FLOP divided by the GPU's peak.", "gpus.md"),
    _metric("exposed_time", "Seconds of communication that no computation hides.", "collectives.md"),
    _metric("overlap", "Share of the communication that computation hides.", "collectives.md"),
    _metric("gradient_error", "Relative error of compressed gradients.", "collectives.md"),
    _metric("gradient_bytes", "Bytes of gradients that a rank sends in a step; exact.", "collectives.md"),
    _metric("load_share", "Share of the time in which a rank waits for its next batch.", "trainings.md"),
    _metric("cpu_utilisation", "Share of the available CPUs that is busy.", "trainings.md"),
    _metric("gpu_utilisation", "Share of the time in which a kernel runs.", "trainings.md"),
    _metric("wall_time", "Seconds of a script or a command, from its start to its end.", "scripts.md"),
    _metric("peak_memory", "Most memory that any rank used.", "verdicts.md"),
    _metric("cpu_throttled", "Share of periods in which a CPU quota stopped a rank.", "scaling.md"),
    _metric("network_rate", "Rate of a simulated network, from a TCP probe.", "hosts.md#networks"),
    _metric("network_round_trip", "Round-trip time of a byte over it.", "hosts.md#networks"),
    _metric("fingerprint", "Collectives of an iteration: which, how many, how large.", "fingerprints.md"),
    _metric("phase/<name>", "Seconds of a phase of an iteration.", "scaling.md#where-a-step-goes"),
    _metric("goodput", "Share of the nodes' time spent on steps that counted.", "elastic.md"),
    _metric("lost_fraction", "Share of an elastic job's time in which no step ran.", "elastic.md"),
    _metric("stall", "Seconds without a step around a change of membership.", "elastic.md"),
    _metric("recovery", "Seconds from a change of membership to the next step.", "elastic.md"),
    _metric("steps_redone", "Steps repeated after a change of membership.", "elastic.md"),
    _metric("samples_skipped", "Samples of an epoch that no rank trained on.", "elastic.md"),
    _metric("samples_repeated", "Samples of an epoch that were trained on more than once.", "elastic.md"),
    _metric("learning_lost", "Share of the progress that loading a checkpoint lost.", "elastic.md"),
)
"""That the plugin names. A name that stands here in no other sense is one that a body recorded."""

_MORE_TIME = "give it more time with --distbench-confirm=auto:SECONDS, or end other processes (distbench doctor)"
_LESS_NOISE = "less noise lowers it: end other processes (distbench doctor), make more launches, time a longer loop"
_RULE = "verdicts.md#the-rule-for-noisy-numbers"
_PROCEDURE = "verdicts.md#the-whole-procedure"

WORDS: Sequence[Entry] = (
    _word(
        "tolerance",
        "Change for the worse that you accept: 10 % by default.",
        _RULE,
        "set it for all with --distbench-tolerance, for one metric with tolerance= or in the baseline file",
    ),
    _word("threshold|limit", "Change that fails: never below the tolerance, wider with noise.", _RULE, _LESS_NOISE),
    _word(
        "MDE|minimum detectable effect|sensitivity|detectable|detect slowdowns|detects slowdowns|detect smaller",
        "Smallest slowdown that a comparison detects with 90 % power: in nine of ten runs.",
        "noise.md#sensitivity-which-slowdowns-are-detected",
        _LESS_NOISE,
    ),
    _word(
        "bound",
        "Absolute limit of a number. It needs no baseline.",
        "verdicts.md#bounds",
        "set it with bounds=, at_most= or at_least=, or in the baseline file",
    ),
    _word(
        "baseline",
        "Numbers that earlier launches stored for a case on this platform: one file in baselines/.",
        "baselines.md#the-baseline-directory",
        "record it with --distbench-update, and commit baselines/",
    ),
    _word(
        "baseline commit",
        "Commit at which the stored baseline of a case was measured.",
        _PROCEDURE,
        "git diff COMMIT shows what changed since; git bisect run distbench verdict TEST finds the commit",
    ),
    _word(
        "candidate|this run",
        "The code under test: your working tree, or what this run measured of it.",
        "against.md",
        "compare it with the baseline, or with another revision: --distbench-against REF",
    ),
    _word("change", "This run divided by the baseline, minus 1.", "verdicts.md", "compare it with the threshold"),
    _word(
        "statistic|geometric mean|mean of seeds|step that differs most",
        "How this run and the baseline are made of their launches: the number that is judged.",
        _RULE,
        "the run record has each launch: --distbench-json",
    ),
    _word(
        "launch|n|pairs",
        "One process group from its start to its exit; n counts them. Noise is measured between launches.",
        _RULE,
        "--distbench-launches N or N:MAX sets how many are made",
    ),
    _word(
        "iteration",
        "One timed call inside a launch, such as a training step.",
        "writing.md",
        "time more of them: for step in rank.timed('step', warmup=5, iterations=N)",
    ),
    _word(
        "case",
        "One measured point: a test with its parameters, such as test_step[ws2].",
        "writing.md",
        "run it alone with pytest 'FILE::TEST[ws2]'",
    ),
    _word(
        "platform|hardware class",
        "Kind of machine that a baseline belongs to, such as the CPU or GPU model.",
        "gpus.md#platforms",
        "give equal machines one name with --distbench-platform NAME",
    ),
    _word(
        "communication fingerprint|fingerprint",
        "Which collectives an iteration sends, how many and how large. It is compared exactly.",
        "fingerprints.md",
        "if a difference is intended, record it with --distbench-update",
    ),
    _word(
        "interleaved A/B|A/B|interleaved|in turns",
        "Candidate and baseline commit run in alternating launches, so that noise hits both sides.",
        "against.md#how-the-sides-alternate",
        _MORE_TIME,
    ),
    _word(
        "A/A|noise floor|A/A noise|noise|against itself",
        "The noise floor: how much launches of the same code differ. It hides smaller changes.",
        "noise.md#sensitivity-which-slowdowns-are-detected",
        "end other processes (distbench doctor), make more launches, or time a longer loop",
    ),
    _word(
        "confirm|confirmed|confirmation|confirming",
        "A suspicious timing is measured again by interleaved A/B with the baseline commit.",
        _PROCEDURE,
        _MORE_TIME,
    ),
    _word(
        "suspicious",
        "A timing that looks slower than its stored baseline, before it is confirmed.",
        _PROCEDURE,
        _MORE_TIME,
    ),
    _word(
        "positive control|injected slowdown|control",
        "A slowdown that the run injects, to show whether it would be detected.",
        "noise.md#positive-control",
        "run it with --distbench-control",
    ),
    _word(
        "environment shift",
        "The machine or its software is slower than before; the code is not.",
        _PROCEDURE,
        "find out what changed on the machine (distbench doctor, driver, other jobs)",
    ),
    _word(
        "numerics changed",
        "A training computes other last digits along the same curve.",
        "convergence.md",
        "nothing if that is expected; to compare with the new digits, --distbench-update",
    ),
    _word(
        "diverges",
        "From the named step on the losses differ from the baseline's by more than the tolerance.",
        "convergence.md#exact-comparison-of-seeded-curves",
        "check the likely causes that the line lists for this step",
    ),
    _word(
        "low power|low sensitivity|power",
        "Power is the probability that a slowdown of a given size is detected; low: below 90 %.",
        "noise.md#sensitivity-which-slowdowns-are-detected",
        _LESS_NOISE,
    ),
    _word(
        "quarantine|advisory|report-only|non-blocking|would have failed",
        "A case is measured and judged, and its verdicts fail no test.",
        "triage.md#quarantine-a-flaky-case",
        "@pytest.mark.distbench(advisory='why') for one case, --distbench-advisory for all",
    ),
    _word(
        "xfail_perf",
        "A regression of this case is expected, with a reason.",
        "triage.md#quarantine-a-flaky-case",
        "remove the keyword from the marker when the regression is fixed",
    ),
    _word(
        "flaky",
        "The test failed and then passed on the same code, such as when pytest-rerunfailures ran it again.",
        "triage.md#quarantine-a-flaky-case",
        "read the failure of its first attempt; or quarantine it: @pytest.mark.distbench(advisory='why')",
    ),
    _word(
        "slow test|slow|full",
        "A test that is marked full. A run leaves it out.",
        "writing.md#short-and-slow-tests",
        "run it with --distbench-full; pytest --durations=10 lists the tests that take longest",
    ),
    _word(
        "faster|speed up|duration",
        "A run takes as long as its launches, and up to 60 s more to confirm suspicious timings.",
        "noise.md",
        (
            "mark long tests full; fewer cases; --distbench-launches=:3; --distbench-confirm=auto:20; a quiet machine "
            "needs one launch a case"
        ),
    ),
    _word(
        "artifact|CI artifact",
        "The files of a CI job: run.json (the run record), run.html, and what ranks printed.",
        "baselines.md#accept-baselines-from-a-ci-artifact",
        "after an intended change: distbench baseline accept run.json --only failed, then commit baselines/",
    ),
    _word(
        ".gitignore|gitignore",
        "Commit baselines/. What runs write otherwise is not for git.",
        "baselines.md#what-to-commit-to-git-and-gitignore",
        "ignore .benchmarks/, .distbench/, .pytest_cache/, run records and pages; distbench init writes the list",
    ),
    _word(
        "torchrun|FSDP2|FSDP|DDP|accelerate|script",
        "A training script that torchrun starts is measured unchanged, with DDP, FSDP2 or accelerate.",
        "scripts.md",
        "call distbench.run('train.py', read={'loss': stdout('loss ' + NUMBER, better='curve')}) in a test",
    ),
    _word(
        "bisect|git bisect",
        "git searches for the commit that changed a number.",
        "against.md#find-the-commit-git-bisect",
        "git bisect start BAD GOOD; git bisect run distbench verdict TEST --distbench-against GOOD",
    ),
    _word(
        "prices|price list",
        "Prices of machines per hour, in a TOML file: what --prices takes.",
        "trainings.md#a-price-list",
        (
            'write currency = "USD", per = "hour", date = 2026-01-31, source = "URL", and for each machine '
            '[machine.NAME] with platforms = ["cpu-*"], ranks_per_node = 8 and regular = 2.5'
        ),
    ),
    _word(
        "experiment",
        "What you state of a run, in a TOML file for --distbench-experiment. --table record has it.",
        "files.md#the-record-of-an-experiment",
        (
            'write description = "...", storage = "...", cluster = "..."; under [test."test_step*"] for some '
            "tests, under [planned] for rows of the environment"
        ),
    ),
    _word(
        "trace",
        "Profile of all ranks of a case, made by --distbench-trace.",
        "triage.md#traces-of-a-regression",
        "open the file in https://ui.perfetto.dev",
    ),
    _word(
        "unused|prune",
        "A baseline file that no test of the run read.",
        "baselines.md#unused-baselines",
        "delete such files with --distbench-prune, after a complete green run",
    ),
    _word(
        "world size|rank|ranks",
        "Ranks are the processes of a launch; their number is the world size.",
        "writing.md",
        "set it with --world-size N",
    ),
    _word(
        "launcher|warm",
        "How ranks are started; warm: forked from a process that has torch loaded.",
        "hosts.md#launchers-how-ranks-are-started",
        "choose another one with --distbench-launcher NAME",
    ),
    _word(
        "golden curve",
        "Losses of one seed that a later run must repeat, step by step.",
        "convergence.md#exact-comparison-of-seeded-curves",
        "if another training is intended, record its losses with --distbench-update",
    ),
    _word("slot", "Place of a node in an elastic job; a new node may take it.", "elastic.md", "rank.slot has it"),
    _word(
        "generation",
        "Time between two changes of an elastic job's membership.",
        "elastic.md",
        "rank.generation counts them",
    ),
    _word("strict", "Inconclusive verdicts and low power fail the test.", "verdicts.md", "see --distbench-strict"),
)
"""Terms that a run prints. They explain a line of which nothing else is known."""

FAILURES: Sequence[Entry] = (
    _failure(
        "hung in ...|hang|hangs|hung|timeout",
        r"\bhung\b",
        "A rank did not end in time. Those with the least progress are named first.",
        "look at the line where it waits; --distbench-timeout S allows more time, --distbench-attach RANK a debugger",
    ),
    _failure(
        "deadlock: ...",
        r"\bdeadlock\b|ended without the collective|alone wait(s|ed) in",
        "Ranks wait in a collective that another rank does not call.",
        "compare the named places; the usual cause is a branch that depends on the rank or on data",
    ),
    _failure(
        "ranks disagree: ...",
        r"ranks disagree",
        "Some ranks skipped the test and others did not.",
        "decide it in the test before the launch, or from what all ranks know",
    ),
    _failure(
        "rank N raised ...",
        r"\braised \w+",
        "The body raised in this rank; those that failed because of it follow.",
        "read its traceback below; --distbench-attach N runs that rank under a debugger",
    ),
    _failure(
        "rank N killed by ...",
        r"\bkilled by SIG",
        "A signal ended the process. For SIGKILL the line says whether memory ran out.",
        "SIGSEGV, SIGABRT: read the stack in the rank's log; SIGKILL: free memory, or find what kills processes",
    ),
    _failure(
        "rank N exit code ...",
        r"\bexit code \d|without a report",
        "The process ended without a report: os._exit(), or a library that exits.",
        "read the log of the rank; the failure prints its path",
    ),
    _failure(
        "the launcher failed: ...",
        r"launcher failed",
        "What starts the ranks (their parent, or torchrun) was killed or could not start.",
        "run the test again, which starts a new one; if it fails again, --distbench-launcher=torchrun",
    ),
    _failure(
        "cannot write its report",
        r"cannot write its report",
        "The rank could not write its results: the disk is full, or a folder was removed.",
        "free space where TMPDIR points to",
    ),
    _failure(
        "waiting for ...",
        r"waiting( since \d+ min)? for |waited \d+ min for ",
        "Another pytest measures on this machine; two at once would disturb each other.",
        "wait, or let them share the host with --distbench-share=host",
        "gpus.md#which-gpus-a-run-gets",
    ),
    *(
        Entry(
            kind="failure",
            name=sign.meaning,
            means=f"{sign.meaning[:1].upper()}{sign.meaning[1:]}. Torch, NCCL or CUDA reported this to a rank.",
            next_step=sign.advice,
            page="triage.md#under-nccl",
            pattern=re.compile(f"{re.escape(sign.meaning)}|{sign.text}", re.IGNORECASE),
        )
        for sign in SIGNS
        if sign.meaning
    ),
)
"""The first words of failures, and those of torch, NCCL and CUDA that are known."""


LINES: Sequence[Entry] = tuple(
    Entry(kind="line", name=name, means=means, next_step=step, page=page, pattern=re.compile(pattern, re.IGNORECASE))
    for name, pattern, means, step, page in (
        (
            "no longer needed",
            r"xfail_perf of .* is no longer needed",
            "A case with xfail_perf did not regress in this run.",
            "remove the marker once this repeats",
            "triage.md#quarantine-a-flaky-case",
        ),
        (
            "failed as expected",
            r"failed as expected \(xfail_perf\)",
            "A case with xfail_perf regressed, which its marker allows.",
            "nothing; the marker's text says why it is there",
            "triage.md#quarantine-a-flaky-case",
        ),
        (
            "advisory",
            r"^A +\w+\[|would have failed, but advisory|\(advisory: ",
            "The verdict would fail the test, but the run or the case is advisory: it is shown only.",
            "read its reason code as for a failure; remove the marker when the case is stable",
            "triage.md#quarantine-a-flaky-case",
        ),
        (
            "git ignores the baselines",
            r"git ignores the baselines",
            "A rule of .gitignore keeps the new baselines out of git, so that nobody else would compare with them.",
            "change the rule that the line names, or git add --force",
            "baselines.md",
        ),
        (
            "few launches",
            r"stored with fewer than \d+ launches",
            "Baselines were recorded with so few launches that their noise is not known.",
            "record again without --distbench-launches, or with --distbench-launches=5",
            "baselines.md",
        ),
        (
            "busy machine",
            r"a baseline recorded now would be noisy",
            "Other processes compute on this machine while it measures.",
            "end them (distbench doctor names them) before you record",
            "baselines.md",
        ),
        (
            "what an update wrote",
            r"baselines in .*: \d+ changed, \d+ new|cases? stored as baselines?|\bU+ +\[",
            "An update wrote baselines: changed, new, or kept as they were.",
            "read the table, then commit the folder: distbench baseline diff shows the difference",
            "baselines.md",
        ),
        (
            "nothing to compare with",
            r"measured, nothing to compare with",
            "The cases have no baseline on this platform: they were measured, and not judged.",
            "the next steps below the line record one, or compare with a branch",
            "baselines.md",
        ),
        (
            "shallow clone",
            r"shallow clone",
            "The clone lacks the baseline commit, so no suspicious timing can be confirmed.",
            "git fetch --deepen=100; in GitHub Actions fetch-depth: 0, on GitLab GIT_DEPTH: 0",
            "ci.md",
        ),
        (
            "compared with itself",
            r"compared with itself|has no commit of that name",
            "--distbench-against has to name another revision than the one that is checked out.",
            "fetch the base, and name it: origin/main, HEAD~ or FETCH_HEAD",
            "against.md",
        ),
        (
            "nothing judges whether it learns",
            r"nothing judges whether it learns|what the body sends is not compared",
            "A training or its communication is measured by time alone: losses or collectives are not compared.",
            "record a loss with better='curve'; put the step into rank.timed or rank.goal",
            "writing.md",
        ),
        (
            "matches nothing in the output",
            r"matches nothing in the output|printed nothing",
            "A script did not print what stdout(...) looks for, or printed it from another rank.",
            "pytest -s shows the output; correct the pattern, or give rank=",
            "scripts.md",
        ),
    )
)
"""Lines of a run that are about more than one number."""


def entries() -> list[Entry]:
    verdicts = [
        Entry(
            kind="verdict",
            name=name,
            means=row.means,
            next_step=row.next_step,
            page="verdicts.md#verdicts",
            also=(row.mark,),
            pattern=re.compile("|".join(filter(None, (_whole(re.escape(name)).pattern, row.printed))), _LINES),
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
            pattern=re.compile(row.printed or re.escape(code), _LINES),
        )
        for code, row in REASONS.items()
    ]
    return [*LINES, *verdicts, *reasons, *WORDS, *METRICS, *FAILURES]


_LINES = re.IGNORECASE | re.MULTILINE
_ORDER = ("line", "reason", "failure", "verdict", "metric")
"""Of what a line is explained by: the most particular first."""


def explain(text: str) -> list[Entry]:
    """What is known of a name, of several names, or of a line that a run printed: of that its first words first."""
    known = entries()
    for names in ([text.strip()], text.split()):
        called = [[entry for entry in known if entry.is_called(name)] for name in names]
        if all(called):
            return [entry for found in called for entry in found]
    places = [(match.start(), entry) for entry in known if (match := entry.pattern.search(text))]
    found = [entry for _, entry in sorted(places, key=lambda place: place[0])]
    particular = sorted((e for e in found if e.kind in _ORDER), key=lambda e: _ORDER.index(e.kind))
    return particular or found


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", metavar="WORDS", nargs="*", help="a name, or a line that a run printed; none: list all names"
    )


def _explain(options: argparse.Namespace) -> Iterator[str]:
    if not options.words:
        yield from _list()
        return
    text = " ".join(options.words)
    found = explain(text)
    if not found:
        names = [entry.name for entry in entries()]
        close = difflib.get_close_matches(text, names, n=3)
        did_you_mean = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
        raise DistbenchError(
            f"{show(text)} is unknown{did_you_mean}. 'distbench explain' without words lists all names; a metric "
            "that is not listed is recorded by the test"
        )
    for i, entry in enumerate(found):
        yield from [""] * (i > 0)
        yield f"{entry.name} ({entry.kind})"
        yield f"  {entry.means}"
        if entry.next_step:
            yield f"  next: {entry.next_step}"
        yield f"  more: {entry.page.replace('.md', '.html')} of the documentation"


def _list() -> Iterator[str]:
    known: dict[str, list[Entry]] = {}
    for entry in entries():
        known.setdefault(entry.kind, []).append(entry)
    for kind, of_kind in known.items():
        yield f"{kind}s"
        yield from (f"  {entry.name}" for entry in of_kind)


EXPLAIN = Command(
    "what a verdict, a reason, a word, a metric or a failure means, and what to do", _add_explain, _explain
)
