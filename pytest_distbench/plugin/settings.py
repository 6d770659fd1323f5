"""Options and ini keys: declared from their rows in ``records.options``, read, and checked with each other.

Modules that only some runs need are imported late, because every pytest run loads this one.
"""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_distbench.errors import ConfigurationError, StoredFileError
from pytest_distbench.extensions import Table
from pytest_distbench.records.options import ADVANCED, BASIC, FAKE, NOTHING, OPTIONS, SHORT, Option
from pytest_distbench.records.wanted import ANY_PLATFORM

if TYPE_CHECKING:
    from pytest_distbench.machine.gpus import Gpus
    from pytest_distbench.run.judge import Judged
    from pytest_distbench.run.request import Settings

MARKERS: Table[str, str] = Table(
    "markers",
    {
        "world_size": "(*sizes, min=, max=): process-group sizes this test runs at; without it the largest given",
        "gpu": "(min_memory=, capability=, link=): this test needs CUDA, and such GPUs; not run without --gpu",
        "cpu": ": this test stays on the CPU, with gloo, under --gpu too",
        "full": ": a slow test, deselected without --distbench-full",
        "distbench": "(timeout=, launches=, tolerance=, metrics=, bounds=, xfail_perf=, advisory=, fake_rank=): "
        "how to judge",
    },
)
"""Name of a marker -> its arguments and meaning, as pytest lists them; ``plugin/markers.py`` reads them."""


class Choice(NamedTuple):
    """Surroundings of launches that tests choose by an argument of a call, a marker and an option of one name.

    Attributes:
        of_marker: returns the choice of a marker.
        find: returns the choice for a call, by its arguments, its marker and the settings, or "".
    """

    of_marker: Callable[[pytest.Mark], str]
    find: Callable[..., str]


CHOICES: Table[str, Choice] = Table("choices", {})  # by the name of the condition that a case has of it


def add_options(parser: pytest.Parser) -> None:
    groups = {title: parser.getgroup(title) for title in (BASIC, ADVANCED)}
    for name, option in OPTIONS.items():
        key = _key(name)
        if option.group:
            as_short = option._replace(summary=f"the same as --{name}, which a conftest may define", group=ADVANCED)
            long = as_short if name in SHORT else option
            groups[long.group].addoption(f"--distbench-{name}", dest=key, **_declaration(long))
        if option.has_ini_key:
            flag = {"type": "bool", "default": option.default or False}
            text = {"type": "args", "default": []} if option.is_list else {"default": ""}
            parser.addini(key, option.help, **(text if option.metavar else flag))


def add_short_options(parser: pytest.Parser) -> list[str]:
    """Add ``--world-size`` and ``--gpu``, each unless a conftest has it; return those that a conftest has."""
    groups = [parser._anonymous, *parser._groups]  # pytest has no public way to ask, and a clash is a crash
    known = {name for group in groups for option in group.options for name in option.names()}
    taken = []
    for name in SHORT:
        if f"--{name}" in known:
            taken.append(f"--{name}")
        else:
            dest = f"distbench_short_{name.replace('-', '_')}"
            parser.getgroup(BASIC).addoption(f"--{name}", dest=dest, **_declaration(OPTIONS[name]))
    return taken


def _declaration(option: Option) -> dict[str, Any]:
    shown = option.help.replace("%", "%%")  # argparse puts values into it
    if not option.metavar:
        return {"action": "store_true", "help": shown}
    optional = {"nargs": "?", "const": option.const} if option.const else {}
    return {"metavar": option.metavar, "help": shown, **optional}


def _key(name: str) -> str:
    return f"distbench_{name.replace('-', '_')}"


def judged_by(config: pytest.Config) -> Judged | None:
    """The change that this process judges with the tests of its base, or None without --distbench-judge=base."""
    if config.getoption("distbench_judge", None) != "base":
        return None
    from pytest_distbench.run.judge import judged_here

    return judged_here()


class Given:
    """The options as they were given; the command line wins over the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._judged = judged_by(config)
        self.folder = Path(self._judged.folder if self._judged else config.invocation_params.dir)
        self._overrides = dict(text.partition("=")[::2] for text in config.getoption("override_ini") or ())

    def typed(self, name: str) -> Any:
        """The value on the command line, by the option or by ``-o`` and the ini key, or None."""
        given = self._by_option(name)
        return self._overrides.get(_key(name)) if given is None else given

    def _by_option(self, name: str) -> Any:
        key = name.replace("-", "_")
        found = (self.config.getoption(f"distbench_{before}{key}", None) for before in ("short_", ""))
        return next((value for value in found if value not in (None, False)), None)

    def text(self, name: str) -> str:
        given = self._by_option(name)
        if given is None and OPTIONS[name].has_ini_key:
            given = self.config.getini(_key(name))
        return shlex.join(given) if isinstance(given, list) else str(given or "").strip()

    def place(self, name: str) -> Path:
        """The folder that the path of an option is relative to: that of the ini file, or the working directory."""
        config = self.config
        of_ini = config.inipath.parent if config.inipath else config.rootpath
        if (
            self._judged is not None and name != "baselines"
        ):  # files are written, and ignored ones read, where ever else
            of_ini = self._judged.in_working_tree(of_ini)
        return of_ini if self.typed(name) is None else self.folder

    def spell(self, name: str) -> str:
        """Write an option with its ini key, or a key that has no option with the place where it was given."""
        option, file = OPTIONS[name], self.config.inipath
        if option.group:
            return _short(name) + (f" (ini: {_key(name)})" if option.has_ini_key else "")
        return f"-o {_key(name)}" if file is None or self.typed(name) is not None else f"{_key(name)} in {file.name}"

    def has(self, wanted: str) -> bool:
        """Whether an option was given, for ``name=value`` with that value in front of a ``:``."""
        name, _, value = wanted.partition("=")
        text = self.text(name)
        given = {part.partition(":")[0].strip() for part in text.split(",")}
        return value in given if value else text not in ("", NOTHING)

    def refuse(self, name: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self.spell(name)}: {why}")

    def read(self, name: str) -> Any:
        """Convert the value of an option as its row says; the default if it was not given."""
        option, text = OPTIONS[name], self.text(name)
        if not option.metavar:
            return bool(text)
        try:
            found = option.wanted.take(text) if text else option.default
        except ConfigurationError as error:
            raise self.refuse(name, str(error)) from None
        if isinstance(found, Path):
            return self.place(name) / found
        if not text or found is not None:
            return found
        if option.const and (self.folder / text.partition("::")[0]).exists():
            raise ConfigurationError(
                f"--distbench-{name} took {text!r} for its value, which is {option.wanted.words}: write the tests "
                f"first, or --distbench-{name}={option.const}"
            )
        raise self.refuse(name, f"{text!r}; wanted {option.wanted.words}")

    def check(self) -> None:
        """Refuse unknown ini keys, empty options, and options that exclude or need another."""
        known = [_key(name) for name, option in OPTIONS.items() if option.has_ini_key]
        for key in self._overrides:
            if key.startswith("distbench_") and key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0)
                raise ConfigurationError(f"-o {key}: there is no such ini key; did you mean {near[0]}?")
        for name, option in OPTIONS.items():
            if isinstance(typed := self.typed(name), str) and not typed.strip():
                raise ConfigurationError(f"{self.spell(name)} is empty: is the variable it comes from set?")
            if not self.has(name) or (name == "against-python" and self.is_of_baseline_commits):
                continue
            for other, why in option.needs.items():  # the ini file is for runs without these, too
                if not self.has(other) and self.typed(name) is not None:
                    raise self.refuse(name, f"{why}: give {_short(other)} too")
            for other, why in option.excludes.items():
                if self.has(other):
                    raise self.refuse(name, f"{why}: leave out {_short(other)}")

    @property
    def is_of_baseline_commits(self) -> bool:
        """Whether the other Python is that of the baseline commits, for confirmation."""
        return self.has("confirm") and not self.has("against")


def _short(name: str) -> str:
    option, _, value = name.partition("=")
    if not OPTIONS[option].group:
        return _key(name)
    return f"--{option}" if option in SHORT else f"--distbench-{option}{value and f' {value}'}"


def given_options(config: pytest.Config) -> dict[str, str]:
    """Option -> its text, for options that were given on the command line or in the ini file; flags are ``true``."""
    given = Given(config)
    found = {name: given.text(name) for name, option in OPTIONS.items() if option.default is not True}
    return {name: text if OPTIONS[name].metavar else "true" for name, text in found.items() if text}


def read_settings(config: pytest.Config) -> Settings:
    """Read the options by their rows, and check them with each other and with this machine."""
    from pytest_distbench.machine.gpus import Gpus  # late: a plain pytest run must not pay for it
    from pytest_distbench.run.request import Settings

    given = Given(config)
    given.check()
    found = {name: given.read(name) for name in OPTIONS}
    settings = Settings(
        gpus=Gpus(),
        added={name: found.pop(name) for name, option in OPTIONS.items() if not option.field},
        **{OPTIONS[name].field: value for name, value in found.items()},
    )
    for check in (_launcher, _ranks, _baselines, _files, _paired):
        settings = check(settings, given)
    return settings


def _launcher(settings: Settings, given: Given) -> Settings:
    from pytest_distbench.launch.starters import LAUNCHERS, shown
    from pytest_distbench.machine import hardware
    from pytest_distbench.releases import check_torch

    text = settings.launcher
    readers = {name: kind.engine for name, kind in LAUNCHERS.items() if kind.engine is not None}
    if "{" in text and readers:
        [(name, check)] = readers.items()
        check(text)
        settings = replace(settings, launcher=name, engine=text)
    elif text not in LAUNCHERS or text in readers:
        example = ", such as 'mpirun -np {nodes} {command}'" if readers else ""
        raise given.refuse("launcher", f"{text!r}; wanted one of {shown(LAUNCHERS)}{example}")
    if LAUNCHERS[settings.launcher].hosts != "none":
        check_torch(hardware.installed_version("torch"))
    return settings


_MOST_RANKS_PER_CORE = 32


def most_ranks() -> tuple[int, str]:
    from pytest_distbench.machine import hardware  # late: a plain pytest run must not pay for it

    cores = hardware.cores()
    return _MOST_RANKS_PER_CORE * cores, f"{_MOST_RANKS_PER_CORE} a core, of {cores}"


def _ranks(settings: Settings, given: Given) -> Settings:
    from pytest_distbench.launch.starters import LAUNCHERS
    from pytest_distbench.machine import gpus, hardware
    from pytest_distbench.releases import NUMA_SINCE, release_of, text

    hosts, name = LAUNCHERS[settings.launcher].hosts, given.text("world-size")
    needs_gpus = settings.gpu and hosts != "many"
    if not settings.gpu and settings.shares_gpu and given.typed("share") is not None:
        raise given.refuse("share", "it shares GPUs between ranks: give --gpu too, or host alone")
    if not settings.gpu:
        settings = replace(settings, share="host" if settings.shares_host else "", numa_binding="")
    elif settings.numa_binding:
        torch = hardware.installed_version("torch")
        if release_of(torch) < NUMA_SINCE:
            raise given.refuse("numa-binding", f"{text(NUMA_SINCE)} and later can bind ranks; found torch {torch}")
    found = gpus.read_gpus(os.environ) if needs_gpus else settings.gpus
    if needs_gpus and not found.visible:
        raise ConfigurationError(f"--gpu: no GPU: {_what_was_found(found)}")
    by_gpus, visible = needs_gpus and not settings.shares_gpu, len(found.visible)
    sizes = settings.world_sizes or (visible if by_gpus else 2,)
    largest = sizes[-1]
    if by_gpus and largest > visible:
        raise ConfigurationError(
            f"--world-size {name} with --gpu needs {largest} GPUs, one per rank; {_what_was_found(found)}. "
            f"Ask for at most {visible}, or add --distbench-share=gpu to test without measuring"
        )
    usual = ("nccl",) if settings.gpu else ("gloo",)
    settings = replace(settings, gpus=found, world_sizes=sizes, backend=settings.backend or usual)
    most, why = most_ranks()
    if hosts == "one" and settings.fake_rank is None and not needs_gpus and largest > most:
        raise ConfigurationError(f"--world-size {name}: at most {most} ranks can run here ({why})")
    of_them = f"the largest group has {largest} ranks"
    if settings.fake_rank is not None and settings.fake_rank >= largest:
        raise given.refuse("backend", f"{FAKE}:{settings.fake_rank}: {of_them}: 0 to {largest - 1}")
    if settings.attach is not None:
        if settings.attach >= largest:
            raise given.refuse("attach", f"there is no rank {settings.attach}: {of_them}")
        if hosts == "many":
            where = f"under --distbench-launcher {settings.launcher} the ranks live on other hosts"
            raise given.refuse("attach", f"{where}, which have no terminal")
        if hasattr(given.config, "workerinput") or getattr(given.config.option, "numprocesses", None):
            raise given.refuse("attach", "with -n nobody has the terminal; leave out -n")
    return settings


def _what_was_found(gpus: Gpus) -> str:
    if gpus.failure:
        return f"{gpus.failure}. Run on a machine with GPUs, or without --gpu"
    found = f"{len(gpus.visible)} visible of {gpus.count} ({gpus.setting})"
    if gpus.visible and gpus.visible[0].slice_of:
        found += "; where MIG is on CUDA shows a process one slice, and no whole GPU"
    return "; ".join([found, *gpus.remarks, *gpus.unreadable])


def _baselines(settings: Settings, given: Given) -> Settings:
    """Check the baseline directory, and the name of the platform in it.

    Without an ini file pytest derives its root directory from existing folders among the arguments, this option's too.
    The name of every test would depend on whether the baseline directory exists.
    """
    from pytest_distbench.machine.hardware import check_platform_name

    folder, text, config = settings.baselines, given.text("baselines"), given.config
    arguments = [str(argument) for argument in config.invocation_params.args]
    is_apart = any(a == "--distbench-baselines" and b == text for a, b in itertools.pairwise(arguments))
    if config.inipath is None and not config.getoption("rootdir", None) and is_apart and folder.exists():
        tests = [Path(config.invocation_params.dir, str(a).partition("::")[0]) for a in config.args]
        folders = [path if path.is_dir() else path.parent for path in tests]
        if Path(os.path.commonpath([os.path.abspath(path) for path in folders])) != config.rootpath:
            raise ConfigurationError(
                f"--distbench-baselines {text}: pytest takes the folder for one of the tests, and its root directory "
                f"is now {config.rootpath}: baselines would not be found under the names of the tests. Write "
                f"--distbench-baselines={text}, or put an ini file such as pytest.ini next to the tests"
            )
    if folder.exists() and not folder.is_dir():
        raise given.refuse("baselines", f"{folder} is not a folder")
    if settings.platform:
        try:
            check_platform_name(settings.platform)
        except ConfigurationError as error:
            raise given.refuse("platform", str(error)) from None
    elif settings.fake_rank is not None:
        return replace(settings, platform=ANY_PLATFORM)
    return settings


def _files(settings: Settings, given: Given) -> Settings:
    from pytest_distbench.store.files import PAGE_SIGN, RECORD_SIGN, check_target, read_experiment

    out = settings.out
    if out is not None:
        check_target(out / "logs" / "*", b"", option=given.spell("out"))
    files: dict[str, Any] = {}
    for name, usual, sign in (("json", "run.json", RECORD_SIGN), ("report", "run.html", PAGE_SIGN)):
        named: Path | None = getattr(settings, name)
        path = named if named is not None else out and out / usual
        if path is None:
            continue
        option = "out" if named is None else name
        if path.is_dir():
            raise given.refuse(option, f"{path} is a folder; give a file")
        check_target(path, sign, option=given.spell(option))
        files[name] = path
    if len(set(files.values())) < len(files):
        both = f"{given.spell('json')} and {given.spell('report')}"
        raise ConfigurationError(f"{both} name one file, {settings.json}: give two")
    traces = (out or given.folder / ".distbench") / "traces"
    there = next(path for path in (traces, *traces.parents) if path.exists())
    if settings.trace and (not there.is_dir() or not os.access(there, os.W_OK | os.X_OK)):
        why = "is not writable" if there.is_dir() else "is no folder"
        raise given.refuse("trace", f"its files go to {traces}, and {there} {why}: give --distbench-out")
    try:
        stated = read_experiment(settings.experiment, with_addresses=settings.addresses)
    except StoredFileError as error:
        raise given.refuse("experiment", str(error)) from None
    return replace(settings, **files, traces=traces, stated=stated)


def _paired(settings: Settings, given: Given) -> Settings:
    from pytest_distbench.judging.thresholds import FEWEST_PAIRS, FIRST_LOOK
    from pytest_distbench.launch.starters import LAUNCHERS, shown

    python, name = settings.against_python, settings.launcher
    if os.sep in python:
        python = str(given.place("against-python") / Path(python).expanduser())
    if python and not LAUNCHERS[name].takes_python:
        raise given.refuse(
            "against-python",
            f"ranks under {name} run the Python of pytest; take another launcher, or run both and give the two run "
            "records to distbench compare",
        )
    if given.is_of_baseline_commits:
        return replace(settings, against_python="", baseline_python=python)
    settings = replace(settings, against_python=python)
    if not settings.is_paired:
        return settings
    option = "against" if settings.against else "against-python"
    if not LAUNCHERS[name].holds_two:
        raise given.refuse(
            option,
            f"holds two groups open at once, which the {name} launcher cannot; take one of "
            + shown(each for each, kind in LAUNCHERS.items() if kind.holds_two),
        )
    if (settings.launches[0] or FIRST_LOOK) < FEWEST_PAIRS:
        raise given.refuse("launches", f"{_short(option)} needs at least {FEWEST_PAIRS} pairs of launches")
    return settings
