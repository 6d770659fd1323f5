"""``distbench bisect``: the commit that moved a metric, found by measuring few of those between two."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shlex
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.commands.contract import Adder, NegativeError
from pytest_distbench.errors import ConfigurationError, StoredFileError, Terminated
from pytest_distbench.judging.bisection import Standing
from pytest_distbench.records.bisection import Bisection, Followed
from pytest_distbench.records.record import replace
from pytest_distbench.report.texts.bisection import (
    MOST_LISTED,
    answer_lines,
    followed_text,
    same_lines,
    visit_lines,
)
from pytest_distbench.run.bisection import LAUNCHES_AT_ENDS, Ends, test_of, visit
from pytest_distbench.run.history import History, find_history
from pytest_distbench.run.untracked import find_links
from pytest_distbench.run.visits import Visits, refuse
from pytest_distbench.store.bisections import BISECTIONS, SCHEMA, place_of

MOST_VISITS = 20
TIMEOUT_S = 1800


def add(add_parser: Adder) -> None:
    """Add the command. What its parser does not know is for pytest."""
    parser = add_parser(
        "bisect",
        help="which commit moved a metric? measures few of those between two revisions",
        usage="%(prog)s GOOD BAD [--metric NAME] [--most-visits N] [--timeout S] [--link PATH] [--take PATH] "
        "[--restart] -- TEST [PYTEST OPTION ...]",
        allow_abbrev=False,
    )
    parser.add_argument("good", metavar="GOOD", help="a revision before the change")
    parser.add_argument("bad", metavar="BAD", help="a later one, after it")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        default="",
        help="that is followed (default: an exact one that differs, else the clock that moved most clearly)",
    )
    parser.add_argument(
        "--most-visits",
        metavar="N",
        type=_number,
        default=MOST_VISITS,
        help=f"visits of commits between GOOD and BAD at most (default: {MOST_VISITS})",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_number,
        default=TIMEOUT_S,
        help=f"seconds that one run of pytest may take (default: {TIMEOUT_S})",
    )
    parser.add_argument(
        "--link",
        metavar="PATH",
        action="append",
        default=[],
        help="what git ignores and the test needs, such as data/: linked from the working tree into each commit",
    )
    parser.add_argument(
        "--take",
        metavar="PATH",
        action="append",
        default=[],
        help="a file of the working tree to lay over each commit: a test that is newer than the change",
    )
    parser.add_argument("--restart", action="store_true", help="forget what an earlier search of these words measured")
    parser.set_defaults(command=_bisect, pytest_arguments=[])


def _bisect(options: argparse.Namespace) -> Iterator[str]:
    """Measure GOOD and BAD, then commits between them, and say what is known after each."""
    test, *rest = [word for word in options.pytest_arguments if word != "--"] or [""]
    _check(test)
    refuse(rest)
    folder = Path.cwd()
    history = find_history(options.good, options.bad, folder)
    root = history.bad.root
    links = find_links(options.link, folder=folder, root=root)
    taken = [_taken(given, folder, root) for given in options.take]
    contents = [hashlib.sha256((root / path).read_bytes()).hexdigest() for path in taken]
    asked = [test, *rest, options.metric, *options.link, *options.take, *contents, str(folder)]
    place = place_of(_git_folder(root), history.good.commit, history.bad.commit, asked)
    yield from _introduce(history)
    if options.restart:
        place.unlink(missing_ok=True)
    visits = Visits(root, folder, rest, timeout_s=options.timeout, links=links, taken=taken)
    with contextlib.closing(visits), _sigterm_interrupts():
        state = yield from _read(place)
        try:
            if state is None:
                followed = yield from _follow(Ends(history, visits, test, options.metric))
                good, bad = history.good.commit, history.bad.commit
                state = Bisection(schema=SCHEMA, good=good, bad=bad, asked=asked, followed=followed)
                BISECTIONS.write(place, state)
            yield f"follows {followed_text(state.followed)}"
            standing = Standing(state, history.commits)
            while standing.next is not None and len(standing.state.visits) < options.most_visits:
                done = visit(standing.next, standing, history, visits)
                standing = Standing(replace(standing.state, visits=[*standing.state.visits, done]), history.commits)
                BISECTIONS.write(place, standing.state)
                yield from visit_lines(done, standing)
        except KeyboardInterrupt:
            yield "interrupted: the same command goes on from here"
            raise
    yield ""
    yield from answer_lines(standing, shlex.join([test_of(standing.state.followed, test), *rest]))
    if standing.found is None:
        raise NegativeError


def _follow(ends: Ends) -> Generator[str, None, Followed]:
    """Measure GOOD and BAD; returns what is followed of what differs: what is exact goes before clocks."""
    yield f"GOOD and BAD, {LAUNCHES_AT_ENDS} launches each ..."
    found = ends.exact()
    yield from ends.remarks
    if not found:
        yield "nothing exact differs; BAD and GOOD in turns ..."
        results = ends.in_turns()
        found = ends.clocks(results)
        if not found:
            yield from same_lines(results, [v.metric for r in results for v in r.verdicts if ends.wants(v.metric)])
            raise NegativeError
    if len(found) > 1:
        yield f"{len(found)} metrics differ; the first is followed, --metric NAME follows another:"
        yield from (f"  {followed_text(followed)}" for followed in found[:MOST_LISTED])
    return found[0]


def _read(place: Path) -> Generator[str, None, Bisection | None]:
    """What an earlier search has left; a file that cannot be read is kept aside."""
    if not place.exists():
        return None
    try:
        state = BISECTIONS.read(place)
    except StoredFileError as error:
        aside = place.with_suffix(".kept")
        place.replace(aside)
        yield f"begins anew: what an earlier search has left, {error.problem}; it lies in {aside}"
        return None
    yield f"goes on after {len(state.visits)} visits of an earlier search; --restart forgets them"
    return state


def _introduce(history: History) -> Iterator[str]:
    number, merges = len(history.commits), sum(len(commit.parents) > 1 for commit in history.commits)
    told = f"; {merges} of them merges, each taken as one change" if merges else ""
    yield f"{number} commit{'s' * (number != 1)} after GOOD, {history.good}, up to BAD, {history.bad}{told}"
    if git.describe_commit(history.bad.root).endswith("-dirty"):
        yield "what is not committed is not looked at"


def _check(test: str) -> None:
    path = Path(test.partition("::")[0])
    if not test or test.startswith("-"):
        raise ConfigurationError("bisect: no test: distbench bisect GOOD BAD -- test_a.py::test_b [PYTEST OPTION ...]")
    if path.is_absolute() or path.suffix != ".py":
        raise ConfigurationError(
            f"bisect: {test}: wanted one test file, or a test in it such as test_a.py::test_b, as seen from this folder"
        )


def _taken(given: str, folder: Path, root: Path) -> Path:
    path = Path(folder, given).resolve()
    if not path.is_file() or not path.is_relative_to(root):
        raise ConfigurationError(f"bisect: --take {given}: wanted a file of the working tree {root}; there is none")
    return path.relative_to(root)


def _git_folder(root: Path) -> Path:
    """What all worktrees of a repository share."""
    return Path(root, git.run(root, "rev-parse", "--git-common-dir").stdout.strip())


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to a million")
    return int(text)


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Cancelled CI jobs get SIGTERM: it ends the search as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise Terminated("SIGTERM interrupted the search")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
