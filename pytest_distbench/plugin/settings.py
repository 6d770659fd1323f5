"""Options and ini keys: declared from the table ``records.options``, and read once into one frozen record."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_distbench.errors import ConfigurationError, StoredFileError
from pytest_distbench.records.options import ADVANCED, BASIC, FAKE, NOTHING, OPTIONS, Option
from pytest_distbench.records.wanted import ANY_PLATFORM, RUN_LAUNCHES, Wanted

if TYPE_CHECKING:
    from pytest_distbench.launch.starters import Engine, LauncherKind
    from pytest_distbench.machine.gpus import Gpus
    from pytest_distbench.records.environment import Experiment
    from pytest_distbench.run.request import AgainstSettings, Settings

MARKERS = (
    "world_size(*sizes, min=, max=): process-group sizes this test runs at; without it the largest given",
    "gpu(min_memory=, capability=, link=): this test needs CUDA, and such GPUs; not run without --gpu",
    "cpu: this test stays on the CPU, with gloo, under --gpu too",
    "network(rate, delay=, loss=, overlay=, hosts=, label=): the network between the ranks of this test",
    "full: a slow test, deselected without --distbench-full",
    "distbench(timeout=, launches=, tolerance=, metrics=, bounds=, xfail_perf=, advisory=, fake_rank=): how to judge",
)
"""The markers, as pytest lists them; ``markers`` reads them."""

SHORT = ("world-size", "gpu")
"""Options that have a spelling without our name, where nobody else has it."""


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
    """Add ``--world-size`` and ``--gpu``, each unless a conftest already has; returns those that were taken."""
    group = parser.getgroup(BASIC)
    taken = []
    for name in SHORT:
        if f"--{name}" in _known_options(parser):
            taken.append(f"--{name}")
        else:
            dest = f"distbench_short_{name.replace('-', '_')}"
            group.addoption(f"--{name}", dest=dest, **_declaration(OPTIONS[name]))
    return taken


def _declaration(option: Option) -> dict[str, Any]:
    shown = option.help.replace("%", "%%")  # argparse puts values into it
    if not option.metavar:
        return {"action": "store_true", "help": shown}
    optional = {"nargs": "?", "const": option.const} if option.const else {}
    return {"metavar": option.metavar, "help": shown, **optional}


def _known_options(parser: pytest.Parser) -> set[str]:
    """Every option string so far. pytest has no public way to ask, and its complaint about a clash is a crash."""
    groups = [parser._anonymous, *parser._groups]
    return {name for group in groups for option in group.options for name in option.names()}


def _key(name: str) -> str:
    return f"distbench_{name.replace('-', '_')}"


class Given:
    """Our options as they were given: the command line before the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.folder = Path(config.invocation_params.dir)
        self._overrides = dict(text.partition("=")[::2] for text in config.getoption("override_ini") or ())

    def typed(self, name: str) -> Any:
        """What the command line says, by the option or by ``-o`` and the ini key."""
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
        """What a path is relative to: the folder of the ini file, or where the command line was typed."""
        config = self.config
        of_ini = config.inipath.parent if config.inipath else config.rootpath
        return of_ini if self.typed(name) is None else self.folder

    def spell(self, name: str) -> str:
        """An option with its ini key; a key that has no option, and where it was given."""
        option, file = OPTIONS[name], self.config.inipath
        if option.group:
            return _short(name) + (f" (ini: {_key(name)})" if option.has_ini_key else "")
        return f"-o {_key(name)}" if file is None or self.typed(name) is not None else f"{_key(name)} in {file.name}"

    def has(self, wanted: str) -> bool:
        """Whether an option was given; behind ``=``, with that value, whatever follows its ``:``."""
        name, _, value = wanted.partition("=")
        text = self.text(name)
        given = {part.partition(":")[0].strip() for part in text.split(",")}
        return value in given if value else text not in ("", NOTHING)

    def refuse(self, name: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self.spell(name)}: {why}")

    def read(self, name: str, default: Any = None, wanted: Wanted[Any] | None = None) -> Any:
        """The value of an option, checked; where it was not given its default."""
        option, text = OPTIONS[name], self.text(name)
        if not text:
            return option.default if default is None else default
        wanted = wanted or option.wanted
        try:
            found = wanted.take(text)
        except ConfigurationError as error:
            raise self.refuse(name, str(error)) from None
        if found is None and option.const and (self.folder / text.partition("::")[0]).exists():
            raise ConfigurationError(
                f"--distbench-{name} took {text!r} for its value, which is {wanted.words}: write the tests first, or "
                f"--distbench-{name}={option.const}"
            )
        if found is None:
            raise self.refuse(name, f"{text!r}; wanted {wanted.words}")
        return found

    def check(self) -> None:
        """Refuse what is unknown or empty, and what does not go with what else was given."""
        known = [_key(name) for name, option in OPTIONS.items() if option.has_ini_key]
        for key in self._overrides:
            if key.startswith("distbench_") and key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0)
                raise ConfigurationError(f"-o {key}: there is no such ini key; did you mean {near[0]}?")
        for name, option in OPTIONS.items():
            if isinstance(typed := self.typed(name), str) and not typed.strip():
                raise ConfigurationError(f"{self.spell(name)} is empty: is the variable it comes from set?")
            if not self.has(name) or (name == "against-python" and self.is_of_recorders):
                continue
            for other, why in option.needs.items():  # the ini file is for runs without these, too
                if not self.has(other) and self.typed(name) is not None:
                    raise self.refuse(name, f"{why}: give {_short(other)} too")
            for other, why in option.excludes.items():
                if self.has(other):
                    raise self.refuse(name, f"{why}: leave out {_short(other)}")

    @property
    def is_of_recorders(self) -> bool:
        """Whether the other Python is that of the revisions that recorded the baselines."""
        return self.has("confirm") and not self.has("against")


def _short(name: str) -> str:
    option, _, value = name.partition("=")
    if not OPTIONS[option].group:
        return _key(name)
    return f"--{option}" if option in SHORT else f"--distbench-{option}{value and f' {value}'}"


def given_options(config: pytest.Config) -> dict[str, str]:
    """Our options that were given, on the command line or in the ini file, by name; flags are ``true``."""
    given = Given(config)
    found = {name: given.text(name) for name, option in OPTIONS.items() if option.default is not True}
    return {name: text if OPTIONS[name].metavar else "true" for name, text in found.items() if text}


def read_settings(config: pytest.Config) -> Settings:
    from pytest_distbench.judging.terms import Strictness  # late: a plain pytest run must not pay for it
    from pytest_distbench.launch.starters import LAUNCHERS
    from pytest_distbench.machine import gpus, hardware
    from pytest_distbench.records.reasons import REASONS
    from pytest_distbench.releases import check_torch
    from pytest_distbench.run.request import ConfirmSettings, Settings

    given = Given(config)
    given.check()
    gpu = given.has("gpu")
    shared = given.read("share", "").split(",") if gpu else []
    name, engine = _launcher(given)
    launcher = LAUNCHERS[name]
    found = gpus.read_gpus(os.environ) if gpu and launcher.hosts != "many" else gpus.Gpus()
    if launcher.hosts != "none":
        check_torch(hardware.installed_version("torch"))
    backends: dict[str, int] = given.read("backend", {"nccl" if gpu else "gloo": 0})
    _check_backends(given, backends)
    fake_rank = backends.get(FAKE)
    has_gpus_here = gpu and launcher.hosts != "many"
    is_here = launcher.hosts == "one" and fake_rank is None
    sizes = _world_sizes(given, gpu=has_gpus_here, gpus=found, shares_gpu="gpu" in shared, is_here=is_here)
    if fake_rank is not None and fake_rank >= sizes[-1]:
        raise given.refuse(
            "backend", f"{FAKE}:{fake_rank}: the largest group has {sizes[-1]} ranks: 0 to {sizes[-1] - 1}"
        )
    first, most = given.read("launches")
    launches, steady = first or 1, None if fake_rank is None else 1
    mode, budget_s = given.read("confirm")
    out = _out_folder(given)
    record_file, page_file = _file(given, "json", out), _file(given, "report", out)
    if record_file is not None and record_file == page_file:
        both = f"{given.spell('json')} and {given.spell('report')}"
        raise ConfigurationError(f"{both} name one file, {record_file}: give two")
    platform = given.text("platform") or ("" if fake_rank is None else ANY_PLATFORM)
    return Settings(
        world_sizes=sizes,
        only_these_sizes="," in given.text("world-size"),
        gpu=gpu,
        gpus=found,
        shares_gpu="gpu" in shared,
        shares_host="host" in shared,
        numa_binding=_numa_binding(given) if gpu else "",
        attach=_attach(given, launcher, name, sizes[-1]),
        backends=tuple(backends),
        fake_rank=fake_rank,
        launcher=name,
        engine=engine,
        launches=launches,
        max_launches=max(launches, most or RUN_LAUNCHES),
        given_max_launches=most is not None,
        update_launches=steady if first is None else first if most in (None, first) else None,
        timeout_s=given.read("timeout"),
        baselines=_folder(given),
        platform=given.read("platform", platform or None, Wanted("a name", hardware.check_platform_name)),
        prune=given.has("prune"),
        update=given.read("update"),
        policy=Strictness(
            options=frozenset(
                row.fails_under
                for row in REASONS.values()
                if row.fails_under and given.has(row.fails_under.removeprefix("distbench-"))
            ),
            no_baseline=given.read("no-baseline"),
        ),
        tolerance=given.read("tolerance"),
        advisory=given.has("advisory"),
        json=record_file,
        report=page_file,
        logs=out and out / "logs",
        experiment=_experiment(given),
        max_message_bytes=given.read("max-message"),
        preload=given.read("preload", ()),
        full=given.has("full"),
        network=given.read("network"),
        data=_data(given),
        against=_against(given, launcher, name),
        confirm=ConfirmSettings(
            mode=mode,
            budget_s=budget_s,
            links=_links(given),
            interpreter=_interpreter(given) if given.is_of_recorders else "",
        ),
        control=given.read("control"),
        trace=given.read("trace"),
        traces=_traces_folder(given, out),
    )


def _launcher(given: Given) -> tuple[str, Engine | None]:
    """The launcher by its name, or by the command that starts processes on other hosts."""
    from pytest_distbench.launch.starters import DEFAULT_LAUNCHER, LAUNCHERS, shown

    text = given.text("launcher") or DEFAULT_LAUNCHER
    if text in LAUNCHERS and LAUNCHERS[text].engine is None:
        return text, None
    readers = {name: kind.engine for name, kind in LAUNCHERS.items() if kind.engine is not None}
    if "{" in text and readers:
        [(name, read)] = readers.items()
        return name, read(text)
    example = ", such as 'mpirun -np {nodes} {command}'" if readers else ""
    raise given.refuse("launcher", f"{text!r}; wanted one of {shown(LAUNCHERS)}{example}")


def _numa_binding(given: Given) -> str:
    mode: str = given.read("numa-binding", "")
    if mode:
        from pytest_distbench.machine import hardware
        from pytest_distbench.releases import PARTS, release_of, text

        found, since = hardware.installed_version("torch"), PARTS["numa"].since
        if release_of(found) < since:
            raise given.refuse("numa-binding", f"{text(since)} and later can bind ranks; found torch {found}")
    return mode


def _check_backends(given: Given, backends: Collection[str]) -> None:
    gpu = given.has("gpu")
    if FAKE in backends and (len(backends) > 1 or gpu):
        other = "--gpu" if gpu else ", ".join(name for name in backends if name != FAKE)
        raise given.refuse(
            "backend", f"{FAKE} has no timings, and baselines of its own for every machine: give it without {other}"
        )


def _out_folder(given: Given) -> Path | None:
    if not (text := given.text("out")):
        return None
    from pytest_distbench.store.files import check_target  # late: for those who ask for it

    check_target(given.folder / text / "logs" / "*", b"", option=given.spell("out"))
    return given.folder / text


def _traces_folder(given: Given, out: Path | None) -> Path:
    folder = (out or given.folder / ".distbench") / "traces"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if given.has("trace") and (not there.is_dir() or not os.access(there, os.W_OK | os.X_OK)):
        why = "is not writable" if there.is_dir() else "is no folder"
        raise given.refuse("trace", f"its files go to {folder}, and {there} {why}: give --distbench-out")
    return folder


def _data(given: Given) -> str:
    """A URL as it is, and a path as an absolute one: ranks need not run where pytest does."""
    text = given.text("data")
    if "://" in text:
        from pytest_distbench.workloads.inputs import why_no_store

        if why := why_no_store(text):
            raise given.refuse("data", f"{text}: {why}")
        return text
    if not text:
        return text
    if not (path := given.folder / text).is_dir():
        raise given.refuse("data", f"there is no folder {path}; give one, or a URL such as s3://bucket")
    return str(path)


def _experiment(given: Given) -> Experiment:
    """What was stated of the run; a path in the ini file is relative to it, one on the command line to where it is."""
    from pytest_distbench.store.run_record import read_experiment

    path = given.place("experiment") / text if (text := given.text("experiment")) else None
    try:
        return read_experiment(path, with_addresses=given.has("addresses"))
    except StoredFileError as error:
        raise given.refuse("experiment", str(error)) from None


def _file(given: Given, name: str, out: Path | None) -> Path | None:
    """The file that an option names, else the one of this kind in the folder for all of the run."""
    is_page = name == "report"
    if text := given.text(name):
        path = given.folder / text
    elif out is not None:
        path, name = out / ("run.html" if is_page else "run.json"), "out"
    else:
        return None
    if path.is_dir():
        raise given.refuse(name, f"{path} is a folder; give a file")
    from pytest_distbench.store.files import PAGE_SIGN, RECORD_SIGN, check_target  # late: for those who ask for a file

    check_target(path, PAGE_SIGN if is_page else RECORD_SIGN, option=given.spell(name))
    return path


def _links(given: Given) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in re.split(r"[,\n]", given.text("against-link")))))


def _interpreter(given: Given) -> str:
    """A command, or a path, which in the ini file is relative to it."""
    text = given.text("against-python") if given.has("against-python") else ""
    return str(given.place("against-python") / Path(text).expanduser()) if os.sep in text else text


def _against(given: Given, launcher: LauncherKind, name: str) -> AgainstSettings | None:
    revision, interpreter = given.text("against") if given.has("against") else "", _interpreter(given)
    if interpreter and not launcher.takes_python:
        raise given.refuse(
            "against-python",
            f"ranks under {name} run the Python of pytest; take another launcher, or run both and give the two run "
            "records to distbench compare",
        )
    if (not revision and not interpreter) or (interpreter and given.is_of_recorders):
        return None
    option = "against" if revision else "against-python"
    from pytest_distbench.judging.pairs import FEWEST_PAIRS, FIRST_LOOK, LAST_LOOK, looks
    from pytest_distbench.launch.starters import LAUNCHERS, shown
    from pytest_distbench.run.request import AgainstSettings

    if not launcher.holds_two:
        raise given.refuse(
            option,
            f"holds two groups open at once, which the {name} launcher cannot; take one of "
            + shown(each for each, kind in LAUNCHERS.items() if kind.holds_two),
        )
    first, most = given.read("launches")
    first = first or FIRST_LOOK
    if first < FEWEST_PAIRS:
        raise given.refuse("launches", f"{_short(option)} needs at least {FEWEST_PAIRS} pairs of launches")
    return AgainstSettings(
        revision=revision,
        interpreter=interpreter,
        links=_links(given),
        tolerance=given.read("against-tolerance"),
        looks=looks(first, most or max(first, LAST_LOOK)),
    )


def _attach(given: Given, launcher: LauncherKind, name: str, largest: int) -> int | None:
    rank: int | None = given.read("attach")
    if rank is None:
        return None
    if rank >= largest:
        raise given.refuse("attach", f"there is no rank {rank}: the largest group has {largest} ranks")
    if launcher.hosts == "many":
        raise given.refuse(
            "attach", f"under --distbench-launcher {name} the ranks live on other hosts, which have no terminal"
        )
    if hasattr(given.config, "workerinput") or getattr(given.config.option, "numprocesses", None):
        raise given.refuse("attach", "with -n nobody has the terminal; leave out -n")
    return rank


def _world_sizes(given: Given, *, gpu: bool, gpus: Gpus, shares_gpu: bool, is_here: bool) -> tuple[int, ...]:
    from pytest_distbench.plugin.requests import most_ranks  # late: a plain pytest run must not pay for it

    visible, found, text = len(gpus.visible), _what_was_found(gpus), given.text("world-size")
    if gpu and not visible:
        raise ConfigurationError(f"--gpu: no GPU: {found}")
    sizes: tuple[int, ...] = given.read("world-size", (visible if gpu and not shares_gpu else 2,))
    if gpu and not shares_gpu and sizes[-1] > visible:
        raise ConfigurationError(
            f"--world-size {text} with --gpu needs {sizes[-1]} GPUs, one per rank; {found}. "
            f"Ask for at most {visible}, or add --distbench-share=gpu to test without measuring"
        )
    most, why = most_ranks()
    if is_here and not gpu and sizes[-1] > most:
        raise ConfigurationError(f"--world-size {text}: at most {most} ranks can run here ({why})")
    return sizes


def _what_was_found(gpus: Gpus) -> str:
    """How many GPUs are visible, and all that is known of why there are no more."""
    if gpus.failure:
        return f"{gpus.failure}. Run on a machine with NVIDIA GPUs, or without --gpu"
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = f"{len(gpus.visible)} visible of {gpus.count}"
    found += f" (CUDA_VISIBLE_DEVICES is {'not set' if variable is None else repr(variable)})"
    if gpus.visible and gpus.visible[0].slice_of:
        found += "; where MIG is on CUDA shows a process one slice, and no whole GPU"
    return "; ".join([found, *gpus.remarks, *gpus.unreadable])


def _folder(given: Given) -> Path:
    text = given.text("baselines")
    folder = given.place("baselines") / (text or "baselines")
    _check_rootdir(given.config, text, folder)
    if folder.exists() and not folder.is_dir():
        raise given.refuse("baselines", f"{folder} is not a folder")
    return folder


def _check_rootdir(config: pytest.Config, given: str, folder: Path) -> None:
    """Without an ini file pytest takes an existing folder among the arguments, this option's too, as one of the tests'.

    Its root directory, and with it the name of every test, then depends on whether the baselines' folder exists.
    """
    arguments = [str(argument) for argument in config.invocation_params.args]
    is_apart = any(a == "--distbench-baselines" and b == given for a, b in itertools.pairwise(arguments))
    if config.inipath is not None or config.getoption("rootdir", None) or not is_apart or not folder.exists():
        return
    tests = [Path(config.invocation_params.dir, str(a).partition("::")[0]) for a in config.args]
    folders = [path if path.is_dir() else path.parent for path in tests]
    if Path(os.path.commonpath([os.path.abspath(path) for path in folders])) != config.rootpath:
        raise ConfigurationError(
            f"--distbench-baselines {given}: pytest takes the folder for one of the tests, and its root directory is "
            f"now {config.rootpath}: baselines would not be found under the names of the tests. Write "
            f"--distbench-baselines={given}, or put an ini file such as pytest.ini next to the tests"
        )
