"""Names and ids of tests, and commands: to run a test again, to record baselines, to compare."""

from __future__ import annotations

import os
import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_distbench.records.options import OPTIONS, Option

BACKEND_ARGUMENT = "distbench_backend"  # parametrized where a run has several backends

_REPEAT = "__pytest_repeat_step_number"  # parametrized by pytest-repeat, from 0; in the id it is ``1-3`` of three

CHOSEN_BY = pytest.StashKey[list[str]]()  # words of the command line that choose a test which no path leads to
RANKS = pytest.StashKey[int]()  # ranks of a test that is not parametrized by them


_INSTALLED = "site-packages"
_LONGEST_ID = 80
_FEW_FILES = 3  # that are named one by one


def id_of_variables(value: object) -> str | None:
    """Write environment variables as part of a test's id: ``NCCL_ALGO=Ring,NCCL_PROTO=LL``.

    None, so that pytest's own id stays, if they are long, secret or no mapping.
    """
    from pytest_distbench.machine.secrets import is_secret_name  # late: few tests are parametrized so

    if not isinstance(value, Mapping) or any(map(is_secret_name, map(str, value))):
        return None
    text = ",".join(f"{name}={inner}" for name, inner in value.items())
    return text if 0 < len(text) <= _LONGEST_ID else None


def full_name(item: pytest.Item) -> str:
    """A test's node id, with the path of its file from the root directory even if it lies outside.

    pytest's own node id has the path from an argument of the command line then, and two tests may have the same.
    """
    root = item.config.rootpath
    if item.path.is_relative_to(root):
        return item.nodeid
    path = Path(os.path.relpath(item.path, root))
    if _INSTALLED in path.parts:  # wherever this environment lies
        path = Path("..", *path.parts[path.parts.index(_INSTALLED) :])
    return f"{path.as_posix()}::{item.nodeid.partition('::')[2]}"


def family_of(item: pytest.Item, case_id: str) -> str:
    """The id of a case without its world size, which all sizes of a test share."""
    callspec = getattr(item, "callspec", None)
    size = item.stash.get(RANKS, None) or (callspec.params.get("world_size") if callspec is not None else None)
    parts = case_id.split("-")
    if (part := f"ws{size}") in parts:
        parts.remove(part)
    return "-".join(parts)


def test_and_id(item: pytest.Item) -> tuple[str, str]:
    """Split a test's name: ``("suites/test_a.py::test_b", "ws4")``. Folders and ids may have brackets.

    The id has no backend, which pytest appends in a run with several. It has the world size even if the test is not
    parametrized by it, because a baseline of one size is none of another.
    """
    callspec = getattr(item, "callspec", None)
    case_id = getattr(callspec, "id", None)
    ranks = [f"ws{item.stash[RANKS]}"] if RANKS in item.stash else []
    name = full_name(item)
    if case_id is None or not name.endswith(f"[{case_id}]"):
        return name, "".join(ranks)
    test = name.removesuffix(f"[{case_id}]")
    if callspec is not None and (step := callspec.params.get(_REPEAT)) is not None:  # its repeats are runs of one case
        case_id = re.sub(rf"(^|-){step + 1}-{item.config.getoption('count')}(?=-|$)", "", case_id).removeprefix("-")
    if ranks:
        return test, "-".join([case_id, *ranks])
    backend = callspec.params.get(BACKEND_ARGUMENT, "") if callspec is not None else ""
    return test, case_id.removesuffix(backend).removesuffix("-") if backend else case_id


_WITH_VALUE = frozenset({
    "-c", "--config-file", "--rootdir", "--confcutdir", "-p", "-o", "--override-ini", "--import-mode",
})  # fmt: skip
"""Options of pytest that a re-run keeps, and that take the next argument as their value."""

_LEFT_OUT_WITH_VALUE = frozenset({
    "-k", "-m", "-n", "-W", "--deselect", "--ignore", "--ignore-glob", "--maxfail", "--tb", "--color", "--dist",
    "--maxprocesses", "--junitxml", "--junit-xml", "--durations", "--durations-min", "--report-log", "--basetemp",
    "--capture", "--log-file",
    "--reruns", "--reruns-delay", "--html", "--css", "--alluredir", "--json-report-file", "--json-report-indent",
    "--cov", "--cov-report", "--cov-config", "--cov-fail-under", "--benchmark-json", "--benchmark-save",
})  # fmt: skip
"""Options that a re-run of one test leaves out: they choose tests, name files, or change the output."""

_LEFT_OUT = re.compile(
    r"-[vqsxlr]\w*|-[kmnW].+|--(verbose|quiet|exitfirst|lf|last-failed|ff|failed-first|nf|new-first|sw|stepwise|stepwise-skip"
    r"|no-header|no-summary|showlocals|pdb|trace|full-trace|setup-show"
    r"|cov-append|cov-branch|no-cov|json-report|json-report-summary|self-contained-html|clean-alluredir|benchmark-autosave)"
)


def rerun_command(config: pytest.Config, item: pytest.Item) -> str:
    """The command that runs a test again: ``pytest 'suites/test_a.py::test_b[ws4]' --gpu``.

    It has the options that decide how a test runs, those of conftests and other plugins included. An argument behind an
    unknown option is its value, unless it chooses tests.
    """
    options, _ = _split(config)
    path = os.path.relpath(item.path, config.invocation_params.dir)
    _, separator, function = item.nodeid.partition("::")
    kept: list[str] = []
    chosen = item.stash.get(CHOSEN_BY, [])
    rest = deque(without_ours(options, *["model"] * bool(chosen)))
    while rest:
        argument = rest.popleft()
        option, _, value = argument.partition("=")
        if option in _LEFT_OUT_WITH_VALUE:
            if not value and rest and not rest[0].startswith("-"):  # some may stand alone
                rest.popleft()
        elif option in _WITH_VALUE and not value:
            given = rest.popleft() if rest else ""
            if not (option == "-p" and given.startswith("no:")):  # such plugins change the screen, not the measurement
                kept += [argument, given]
        elif not _LEFT_OUT.fullmatch(option) and argument not in config.args:
            kept.append(argument)
    return shlex.join(["pytest", *(chosen or [f"{path}{separator}{function}"]), *kept])


def record_command(config: pytest.Config) -> str:
    return shlex.join(["pytest", *record_arguments(config)])


def next_commands(config: pytest.Config, folder: Path, measured: Iterable[str], *, may_compare: bool) -> dict[str, str]:
    """The commands after a run without baselines: record, keep (commit), against (compare); "" if not possible.

    Tests are committed with their baselines, so that A/B can run both.

    Args:
        folder: the baseline directory.
        measured: files of tests, to be committed if the command line names none.
        may_compare: whether backend and launcher of the run can measure two revisions.
    """
    from pytest_distbench.git import knows  # it runs a program, which an unused plugin does not

    if not any((place / ".git").exists() for place in (config.rootpath, *config.rootpath.parents)):
        return {"record": record_command(config)}
    options, names = _split(config)
    chosen = set(config.args)
    tests = dict.fromkeys(word.partition("::")[0] for word in [*options, *names] if word in chosen)
    files = dict.fromkeys(measured)
    folders = dict.fromkeys(file.rpartition("/")[0] or file for file in files)
    tests = tests or (files if len(files) <= _FEW_FILES else folders)
    other = "main" if knows(config.rootpath, "refs/heads/main") else "HEAD"
    against = shlex.join(["pytest", *without_ours(options, "launches"), f"--distbench-against={other}", *names])
    return {
        "record": record_command(config),
        "keep": f"git add {shlex.join([*tests, str(folder)])} && git commit -m 'Add baselines'",
        "against": against if may_compare and knows(config.rootpath, "HEAD") else "",
    }


def record_arguments(config: pytest.Config) -> list[str]:
    options, names = _split(config)
    return [*without_ours(options, "launches", "model"), "--distbench-update=new", *names]


def _split(config: pytest.Config) -> tuple[list[str], list[str]]:
    """Split the command line before ``--``; the words behind it are names of tests."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end:]


def without_ours(arguments: Sequence[str], *more: str) -> list[str]:
    dropped = {
        f"--distbench-{name}": option for name, option in OPTIONS.items() if not option.is_repeated or name in more
    }
    kept: list[str] = []
    left_out: Option | None = None  # whose value comes next, unless it may stand alone
    for argument in arguments:
        if left_out is not None and not (left_out.const and argument.startswith("-")):
            left_out = None
            continue
        name, separator, _ = argument.partition("=")
        option = dropped.get(name)
        left_out = option if option is not None and option.metavar and not separator else None
        if option is None:
            kept.append(argument)
    return kept


_SELECTING = (
    ("keyword", "-k"), ("markexpr", "-m"), ("deselect", "--deselect"), ("ignore", "--ignore"),
    ("ignore_glob", "--ignore-glob"), ("lf", "--last-failed"), ("stepwise", "--stepwise"), ("pyargs", "--pyargs"),
    ("distbench_attach", "--distbench-attach"), ("distbench_model", "--distbench-model"),
)  # fmt: skip


def why_partial(config: pytest.Config, session: pytest.Session, *, deselected: int, unreported: int) -> str:
    """Why a run cannot know which baselines are unused, or "" if it ran all tests, and they passed."""
    for name, option in _SELECTING:
        if config.getoption(name, None):
            return f"{option} was given"
    if any("::" in str(argument) for argument in config.args):
        return "single tests were named"
    if deselected:
        return f"{deselected} tests were deselected"
    if session.exitstatus != pytest.ExitCode.OK or session.testsfailed:
        return f"{session.testsfailed} tests failed" if session.testsfailed else "the run failed"
    if session.shouldstop or session.shouldfail:
        return "the run was stopped early"
    if unreported:  # a conftest may run tests its own way
        return f"{unreported} collected tests were not reported"
    return ""
