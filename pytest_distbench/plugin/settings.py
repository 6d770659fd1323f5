"""Command line and ini file, read and checked once into one frozen record. ``options`` declares them."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pytest

from pytest_distbench.errors import ConfigurationError, StoredFileError
from pytest_distbench.launch.starters.table import CMD, DEFAULT_LAUNCHER, LAUNCHERS, who_hold_two
from pytest_distbench.records.choices import (
    ANY_PLATFORM,
    CONFIRM_BUDGET_S,
    CONFIRMS,
    DEFAULT_TOLERANCE,
    LONGEST_TIMEOUT_S,
    MOST_LAUNCHES,
    MOST_TOLERANCE,
    RUN_LAUNCHES,
    TRACED_CASES,
    UPDATES,
)
from pytest_distbench.records.options import BACKENDS, BY_TOLERANCE, FAKE, NOTHING, NUMA_BINDINGS, OPTIONS
from pytest_distbench.records.wanted import FRACTION, Wanted, number, whole
from pytest_distbench.releases import PARTS, check_torch, release_of, text
from pytest_distbench.units import parse_bytes

if TYPE_CHECKING:
    from pytest_distbench.launch.starters.contract import Engine
    from pytest_distbench.machine.gpus import Gpus
    from pytest_distbench.records.choices import Update
    from pytest_distbench.records.kinds import VerdictName
    from pytest_distbench.records.network import Network
    from pytest_distbench.records.stated import Experiment
    from pytest_distbench.run.request import AgainstSettings, ConfirmSettings, ControlSettings, Settings, TraceSettings

T = TypeVar("T")

"""More ranks than this on one CPU core is a typing error, not a test."""

_MOST_DIGITS = 9

_CHOSEN = {"missing": "policy", "numa_binding": "mode", "trace": "choice of cases"}
"""What an option chooses, where it is not called so."""

_OTHER_DEVICES = {
    "rocm": ("ROCm: AMD GPUs", "amdsmi"),
    "xpu": ("XPU: Intel GPUs", "level-zero"),
}
"""By the local version of a torch that has no CUDA: its devices, and what tells of them."""


def read_settings(config: pytest.Config) -> Settings:
    from pytest_distbench.judging.judgement import Missing, Strictness  # late: a plain pytest run must not pay for it
    from pytest_distbench.machine import gpus, hardware
    from pytest_distbench.run.request import Settings

    gpu = bool(_option(config, "gpu") or _option(config, "short_gpu") or config.getini("distbench_gpu"))
    launcher = _launcher(config)
    hosts = LAUNCHERS[launcher].hosts
    found = gpus.read_gpus(os.environ) if gpu and hosts != "many" else gpus.Gpus()
    shares_gpu = bool(_option(config, "share_gpu"))
    if shares_gpu and not gpu:
        raise ConfigurationError("--distbench-share-gpu puts several ranks on one GPU: give --gpu too")
    shares_host = _is_on(config, "share_host")
    if shares_host and not gpu:
        raise ConfigurationError(
            f"{_spell('share_host')}: each run is alone on its GPUs, and there are none without --gpu: give it too, or "
            "let the runs wait for each other"
        )
    sizes_text = _option(config, "short_world_size") or _text(config, "world_size")
    if hosts != "none":
        check_torch(hardware.installed_version("torch"))
        if gpu:
            _refuse_other_devices(hardware.installed_version("torch"), hardware.torch_is_built_for())
    backends = _backends(config, gpu=gpu)
    fake_rank = _fake_rank(config, backends, gpu=gpu)
    is_here = hosts == "one" and fake_rank is None
    has_gpus_here = gpu and hosts != "many"
    sizes = _world_sizes(
        sizes_text, launcher=launcher, gpu=has_gpus_here, gpus=found, shares_gpu=shares_gpu, is_here=is_here
    )
    _check_text(config.rootpath)
    launches = _integer(config, "launches", 1, least=1, most=MOST_LAUNCHES)
    given_launches, given_most = bool(_text(config, "launches")), bool(_text(config, "max_launches"))
    most = _most(config, launches, RUN_LAUNCHES)
    steady = None if fake_rank is None else 1
    update = _update(config)
    if gpu and "xccl" in backends:
        raise ConfigurationError(
            "--distbench-backend xccl joins Intel GPUs (XPU), which are not supported; --gpu is CUDA: take nccl"
        )
    if shares_gpu and update:
        raise ConfigurationError(
            "--distbench-share-gpu measures nothing that could be a baseline; leave out --distbench-update"
        )
    record_file, page_file = _file(config, "json"), _file(config, "report")
    if record_file is not None and record_file == page_file:
        raise ConfigurationError(f"{_spell('json')} and {_spell('report')} name one file, {record_file}: give two")
    platform, default_platform = _text(config, "platform"), "" if fake_rank is None else ANY_PLATFORM
    return Settings(
        world_sizes=sizes,
        only_these_sizes="," in sizes_text,
        gpu=gpu,
        gpus=found,
        shares_gpu=shares_gpu,
        shares_host=shares_host,
        numa_binding=_numa_binding(config, gpu=gpu),
        attach=_attach(config, sizes[-1], is_update=bool(update)),
        backends=backends,
        fake_rank=fake_rank,
        launcher=launcher,
        engine=_engine(config, launcher),
        launches=launches,
        max_launches=most,
        given_max_launches=given_most,
        update_launches=launches if given_launches else steady,
        timeout_s=_number(config, "timeout", 300.0, least=0.1, most=LONGEST_TIMEOUT_S),
        baselines=_folder(config),
        platform=hardware.check_platform_name(platform or default_platform) if platform or default_platform else None,
        prune=bool(_option(config, "prune")),
        update=update,
        policy=Strictness(
            also_failing=_kinds_that_fail_too(config),
            missing=_choice(config, "missing", get_args(Missing), "warn"),  # type: ignore[arg-type] # checked by _choice
        ),
        tolerance=_tolerance(config, "tolerance", DEFAULT_TOLERANCE),
        json=record_file,
        report=page_file,
        logs=_logs_folder(config),
        experiment=_experiment(config),
        max_message_bytes=_size(config, "max_message"),
        preload=tuple(config.getini("distbench_preload")),
        full=_is_on(config, "full"),
        network=_network(config),
        data=_data(config),
        against=_against(config),
        confirm=_confirm(config),
        control=_control(config),
        trace=_trace(config),
    )


def given_options(config: pytest.Config) -> dict[str, str]:
    """Our options that were given, on the command line or in the ini file, by name; flags are ``true``."""
    found = {}
    for name, option in OPTIONS.items():
        key = name.replace("-", "_")
        given = _option(config, key) or _option(config, f"short_{key}")
        given = given or (option.has_ini_key and config.getini(f"distbench_{key}"))
        if given:
            found[name] = str(given) if option.metavar else "true"
    return found


def _kinds_that_fail_too(config: pytest.Config) -> frozenset[VerdictName]:
    from pytest_distbench.records.kinds import VERDICT_KINDS

    flags = [name for name, option in OPTIONS.items() if not option.metavar and option.has_ini_key]
    chosen = {f"distbench-{name}" for name in flags if _is_on(config, name.replace("-", "_"))}
    return frozenset(name for name, kind in VERDICT_KINDS.items() if kind.fails_under in chosen)


def _is_on(config: pytest.Config, name: str) -> bool:
    return bool(_option(config, name) or config.getini(f"distbench_{name}"))


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"distbench_{name}", None)


def _text(config: pytest.Config, name: str) -> str:
    given = _option(config, name)
    return str(given if given is not None else config.getini(f"distbench_{name}")).strip()


def _spell(name: str) -> str:
    return f"--distbench-{name.replace('_', '-')} (ini: distbench_{name})"


def _choice(config: pytest.Config, name: str, allowed: tuple[str, ...], default: str) -> str:
    text = _text(config, name) or default
    if text and text not in allowed:
        raise ConfigurationError(
            f"{_spell(name)}: unknown {_CHOSEN.get(name, name)} {text!r}; known are {', '.join(allowed)}"
        )
    return text


def _refuse_tests(config: pytest.Config, name: str, choices: Sequence[str], *, usual: str) -> None:
    """Say where an option without a value has taken the tests behind it for one."""
    text = _text(config, name)
    if text and text not in choices and Path(config.invocation_params.dir, text.partition("::")[0]).exists():
        raise ConfigurationError(
            f"--distbench-{name} took {text!r} for its value, one of {', '.join(choices)}: "
            f"write the tests first, or --distbench-{name}={usual}"
        )


def _update(config: pytest.Config) -> Update | None:
    _refuse_tests(config, "update", UPDATES, usual="changed")
    return _choice(config, "update", UPDATES, "") or None  # type: ignore[return-value] # checked by _choice


def _launcher(config: pytest.Config) -> str:
    """As named, or what a template implies; what the command line says comes before the ini file."""
    _refuse_empty(config, "launcher_cmd")
    named, template = _option(config, "launcher"), _option(config, "launcher_cmd")
    if template and named is None:
        return CMD
    name = _choice(config, "launcher", tuple(LAUNCHERS), CMD if _text(config, "launcher_cmd") else DEFAULT_LAUNCHER)
    if template and name != CMD:
        raise ConfigurationError(f"--distbench-launcher {name} runs no --distbench-launcher-cmd: leave out one of them")
    return name


def _engine(config: pytest.Config, launcher: str) -> Engine | None:
    """What starts processes on other hosts, where the launcher leaves that to a command."""
    if launcher != CMD:
        if _option(config, "ranks_per_node"):
            raise ConfigurationError(f"{_spell('ranks_per_node')}: give --distbench-launcher-cmd too")
        return None
    from pytest_distbench.launch.starters.cmd import check_template  # late: a plain pytest run must not pay for it
    from pytest_distbench.launch.starters.contract import Engine

    if not (template := _text(config, "launcher_cmd")):
        raise ConfigurationError(
            f"--distbench-launcher {CMD}: give the command, such as --distbench-launcher-cmd 'mpirun -np {{nodes}} "
            "--map-by ppr:1:node {command}'"
        )
    check_template(template)
    return Engine(template=template, ranks_per_node=_integer(config, "ranks_per_node", 1, least=1))


def _refuse_empty(config: pytest.Config, *names: str) -> None:
    for name in names:
        if _option(config, name) is not None and not _text(config, name):
            raise ConfigurationError(f"{_spell(name)} is empty: is the variable it comes from set?")


def _numa_binding(config: pytest.Config, *, gpu: bool) -> str:
    _refuse_empty(config, "numa_binding")
    mode = _choice(config, "numa_binding", NUMA_BINDINGS, "")
    if mode and not gpu:
        raise ConfigurationError(f"{_spell('numa_binding')}: binds ranks to the CPUs near their GPUs: give --gpu too")
    from pytest_distbench.machine import hardware

    found, since = hardware.installed_version("torch"), PARTS["numa"].since
    if mode and release_of(found) < since:
        raise ConfigurationError(
            f"{_spell('numa_binding')}: {text(since)} and later can bind ranks; found torch {found}"
        )
    return mode


def _backends(config: pytest.Config, *, gpu: bool) -> tuple[str, ...]:
    """One or several, each once, in the order given."""
    text = _text(config, "backend") or ("nccl" if gpu else "gloo")
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if name not in BACKENDS]:
        raise ConfigurationError(f"{_spell('backend')}: unknown backend {wrong[0]!r}; known are {', '.join(BACKENDS)}")
    return tuple(dict.fromkeys(names))


def _fake_rank(config: pytest.Config, backends: tuple[str, ...], *, gpu: bool) -> int | None:
    """The rank that the one process of a launch stands for; None on backends that move data."""
    if FAKE not in backends:
        if _text(config, "fake_rank"):
            raise ConfigurationError(f"{_spell('fake_rank')}: give --distbench-backend {FAKE} too")
        return None
    if len(backends) > 1 or gpu:
        other = "--gpu" if gpu else f"{', '.join(name for name in backends if name != FAKE)}"
        raise ConfigurationError(
            f"--distbench-backend {FAKE} has no clocks, and baselines of its own for every machine: give it without "
            f"{other}"
        )
    if _text(config, "against") not in ("", NOTHING) or _text(config, "against_python") not in ("", NOTHING):
        raise ConfigurationError(
            f"--distbench-backend {FAKE} has no clocks, which is what a comparison in turns is for: run it in both "
            "trees, and give the two run records to distbench compare"
        )
    if _text(config, "attach"):
        raise ConfigurationError(f"{_spell('attach')}: no rank of the {FAKE} backend can be attached to; use gloo")
    text = _text(config, "fake_rank") or "0"
    if not re.fullmatch(rf"-?\d{{1,{_MOST_DIGITS}}}", text):
        raise ConfigurationError(f"{_spell('fake_rank')}: {text!r} is no rank: give 0 or more, or -1 for the last")
    return int(text)


def _read(config: pytest.Config, name: str, wanted: Wanted[T], default: T) -> T:
    text = _text(config, name)
    found = wanted.take(text) if text else default
    if found is None:
        raise ConfigurationError(f"{_spell(name)}: {text!r}; wanted {wanted.words}")
    return found


def _number(config: pytest.Config, name: str, default: float, *, least: float, most: float) -> float:
    return _read(config, name, number(least=least, most=most, read=_float), default)


def _tolerance(config: pytest.Config, name: str, default: float) -> float:
    return _read(config, name, Wanted(FRACTION.words, lambda text: FRACTION.take(_float(text))), default)


def _integer(config: pytest.Config, name: str, default: int, *, least: int, most: int = 10**_MOST_DIGITS) -> int:
    return _read(config, name, whole(least, most, read=_int), default)


def _float(text: Any) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _int(text: Any) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _size(config: pytest.Config, name: str) -> int | None:
    text = _text(config, name)
    try:
        return parse_bytes(text) if text else None
    except ConfigurationError as error:
        raise ConfigurationError(f"{_spell(name)}: {error}") from None


def _network(config: pytest.Config) -> Network | None:
    from pytest_distbench.records.network import parse_network

    text = _text(config, "network")
    if not text and _option(config, "network") is not None:
        raise ConfigurationError(f"{_spell('network')} is empty: is the variable it comes from set?")
    try:
        return parse_network(text) if text else None
    except ConfigurationError as error:
        raise ConfigurationError(f"{_spell('network')}: {error}") from None


def _logs_folder(config: pytest.Config) -> Path | None:
    text = _text(config, "logs")
    path = Path(config.invocation_params.dir, text)
    if text and path.exists() and not path.is_dir():
        raise ConfigurationError(f"{_spell('logs')}: {path} is no folder")
    if not text:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{_spell('logs')}: cannot make the folder {path}: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{_spell('logs')}: the folder {path} is not writable")
    return path


def _trace(config: pytest.Config) -> TraceSettings | None:
    """Which cases get a trace; says at once where none could be made or kept."""
    from pytest_distbench.run.request import TraceSettings

    _refuse_tests(config, "trace", TRACED_CASES, usual="regressed")
    cases = _choice(config, "trace", TRACED_CASES, "")
    if not cases:
        return None
    if FAKE in _backends(config, gpu=False):
        raise ConfigurationError(f"{_spell('trace')}: the backend {FAKE} moves no data and has no clocks: leave it out")
    logs = _logs_folder(config)
    folder = logs or config.invocation_params.dir / ".distbench" / "traces"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not writable" if there.is_dir() else "is no folder"
        raise ConfigurationError(
            f"{_spell('trace')}: its files go to {folder}, and {there} {why}: give --distbench-logs"
        )
    return TraceSettings(cases=cases, folder=folder, is_ours=logs is None)  # type: ignore[arg-type] # checked by _choice


def _data(config: pytest.Config) -> str:
    """A URL as it is, and a path as an absolute one: ranks need not run where pytest does."""
    _refuse_empty(config, "data")
    text = _text(config, "data")
    if "://" in text:
        from pytest_distbench.workloads.inputs import why_no_store

        if why := why_no_store(text):
            raise ConfigurationError(f"{_spell('data')}: {text}: {why}")
        return text
    if not text:
        return text
    path = Path(config.invocation_params.dir, text)
    if not path.is_dir():
        raise ConfigurationError(f"{_spell('data')}: there is no folder {path}; give one, or a URL such as s3://bucket")
    return str(path)


def _experiment(config: pytest.Config) -> Experiment:
    """What was stated of the run; a path in the ini file is relative to it, one on the command line to where it is."""
    from pytest_distbench.store.stated import read_experiment

    _refuse_empty(config, "experiment")
    beside = config.inipath.parent if config.inipath else config.rootpath
    folder = beside if _option(config, "experiment") is None else config.invocation_params.dir
    text = _text(config, "experiment")
    try:
        return read_experiment(Path(folder, text) if text else None, with_addresses=_is_on(config, "addresses"))
    except StoredFileError as error:
        raise ConfigurationError(f"{_spell('experiment')}: {error}") from None


def _file(config: pytest.Config, name: str) -> Path | None:
    text = _text(config, name)
    path = Path(config.invocation_params.dir, text)
    if text and path.is_dir():
        raise ConfigurationError(f"{_spell(name)}: {path} is a folder; give a file")
    if not text:
        return None
    from pytest_distbench.store.files import PAGE_SIGN, RECORD_SIGN, check_target  # late: for those who ask for a file

    check_target(path, PAGE_SIGN if name == "report" else RECORD_SIGN, option=_spell(name))
    return path


def _most(config: pytest.Config, first: int, default: int) -> int:
    if not _text(config, "max_launches"):
        return max(first, default)
    most = _integer(config, "max_launches", default, least=1, most=MOST_LAUNCHES)
    if most < first and _text(config, "launches"):
        raise ConfigurationError(f"{_spell('max_launches')}: {most} is less than the {first} of --distbench-launches")
    return max(first, most)


def _links(config: pytest.Config) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in re.split(r"[,\n]", _text(config, "against_link")))))


def _confirm(config: pytest.Config) -> ConfirmSettings:
    from pytest_distbench.run.request import ConfirmSettings

    mode = _choice(config, "confirm", CONFIRMS, "auto")
    return ConfirmSettings(
        mode=mode,  # type: ignore[arg-type] # checked by _choice
        budget_s=_number(config, "confirm_budget", CONFIRM_BUDGET_S, least=0.0, most=LONGEST_TIMEOUT_S),
        links=_links(config),
        interpreter=_python_of_recorder(config),
    )


def _python_of_recorder(config: pytest.Config) -> str:
    """Beside --distbench-confirm, --distbench-against-python is the Python of what recorded the baselines."""
    given = _text(config, "against_python")
    is_of_confirmation = bool(_text(config, "confirm")) and _text(config, "against") in ("", NOTHING)
    return given if is_of_confirmation and given != NOTHING else ""


def _control(config: pytest.Config) -> ControlSettings | None:
    """Whether a slowdown is planted; says at once which other options that cannot go with."""
    from pytest_distbench.run.request import ControlSettings

    if (given := _option(config, "control")) is None:
        return None
    text, words = str(given).strip(), "--distbench-control"
    others = {
        "update": "measures with a slowdown in it, which is no baseline",
        "prune": "judges nothing, so that no stored entry is known to be unused",
        "against": "compares with this tree itself, without the slowdown",
        "against_python": "compares with this tree itself, without the slowdown",
        "attach": "needs clocks, and under a debugger they mean nothing",
        "share_gpu": "needs clocks, and where ranks share a GPU they mean nothing",
    }
    for name, why in others.items():
        given_too = _option(config, name) if name in ("prune", "share_gpu") else _text(config, name)
        if given_too and given_too != NOTHING:
            raise ConfigurationError(f"{words} {why}: leave out --distbench-{name.replace('_', '-')}")
    if FAKE in _backends(config, gpu=False):
        raise ConfigurationError(f"{words} needs clocks, and the backend {FAKE} has none: take another one")
    if text == BY_TOLERANCE:
        return ControlSettings()
    share = _float(text)
    if share is not None and 0 < share <= MOST_TOLERANCE:
        return ControlSettings(share=share)
    if Path(config.invocation_params.dir, text.partition("::")[0]).exists():
        raise ConfigurationError(
            f"{words} took {text!r} for the share: write the tests first, or {words}={BY_TOLERANCE}"
        )
    raise ConfigurationError(
        f"{words}: {text!r} is no share; wanted a number above 0 and at most {MOST_TOLERANCE:g}, such as 0.2, which "
        "makes what is timed 20 % slower; or nothing, for a third more than each case's tolerance"
    )


def _against(config: pytest.Config) -> AgainstSettings | None:
    """What to compare with; says at once which other options it cannot go with."""
    _refuse_empty(config, "against", "against_python")
    given = (_text(config, name) for name in ("against", "against_python"))
    revision, interpreter = ("" if text == NOTHING else text for text in given)
    if interpreter and not LAUNCHERS[_launcher(config)].takes_python:
        raise ConfigurationError(
            f"--distbench-against-python: ranks under {_launcher(config)} run the Python of pytest; take another "
            "launcher, or run both and give the two run records to distbench compare"
        )
    if (not revision and not interpreter) or _python_of_recorder(config):
        return None
    option = "--distbench-against" if revision else "--distbench-against-python"
    if _text(config, "update"):
        raise ConfigurationError(f"{option} reads and writes no baseline; leave out --distbench-update")
    if _option(config, "prune"):
        raise ConfigurationError(f"{option} uses no stored entry, so none is unused; leave out --distbench-prune")
    if not LAUNCHERS[_launcher(config)].holds_two:
        raise ConfigurationError(
            f"{option} holds two groups open at once, which the {_launcher(config)} launcher cannot; "
            f"take one of {who_hold_two()}"
        )
    if _option(config, "share_gpu"):
        raise ConfigurationError(f"{option}: with --distbench-share-gpu nothing is judged; leave out one of them")
    from pytest_distbench.judging.pairs import FEWEST_PAIRS, FIRST_LOOK, LAST_LOOK, TOLERANCE, looks
    from pytest_distbench.run.request import AgainstSettings

    first = _integer(config, "launches", FIRST_LOOK, least=1)
    if first < FEWEST_PAIRS:
        raise ConfigurationError(f"{_spell('launches')}: {option} needs at least {FEWEST_PAIRS} pairs of launches")
    return AgainstSettings(
        revision=revision,
        interpreter=interpreter,
        links=_links(config),
        tolerance=_tolerance(config, "against_tolerance", TOLERANCE),
        looks=looks(first, _most(config, first, LAST_LOOK)),
    )


def _attach(config: pytest.Config, largest: int, *, is_update: bool) -> int | None:
    if not _text(config, "attach"):
        return None
    rank = _integer(config, "attach", 0, least=0)
    if rank >= largest:
        raise ConfigurationError(f"{_spell('attach')}: there is no rank {rank}: the largest group has {largest} ranks")
    if LAUNCHERS[_launcher(config)].hosts == "many":
        raise ConfigurationError(
            f"{_spell('attach')}: under --distbench-launcher {_launcher(config)} the ranks live on other hosts, which "
            f"have no terminal; take --distbench-launcher {DEFAULT_LAUNCHER}"
        )
    if is_update:
        raise ConfigurationError(f"{_spell('attach')}: nothing is measured then; leave out --distbench-update")
    if hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None):
        raise ConfigurationError(f"{_spell('attach')}: with -n nobody has the terminal; leave out -n")
    return rank


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Read ``"4"`` or ``"2,4,8"``: positive sizes, ascending, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(len(part) <= _MOST_DIGITS and part.isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigurationError(f"--world-size: {text!r} is not a number of ranks: write for example 4, or 2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def _world_sizes(
    text: str, *, launcher: str, gpu: bool, gpus: Gpus, shares_gpu: bool, is_here: bool
) -> tuple[int, ...]:
    from pytest_distbench.plugin.requests import most_ranks  # late: a plain pytest run must not pay for it

    visible, found = len(gpus.visible), _what_was_found(gpus)
    if gpu and not visible:
        raise ConfigurationError(f"--gpu: no GPU: {found}")
    sizes = parse_world_sizes(text) if text else (visible if gpu and not shares_gpu else 2,)
    if gpu and not shares_gpu and sizes[-1] > visible:
        raise ConfigurationError(
            f"--world-size {text} with --gpu needs {sizes[-1]} GPUs, one per rank; {found}. "
            f"Ask for at most {visible}, or add --distbench-share-gpu to test without measuring"
        )
    most, why = most_ranks(launcher)
    if is_here and not gpu and sizes[-1] > most:
        raise ConfigurationError(f"--world-size {text}: at most {most} ranks can run here ({why})")
    return sizes


def _refuse_other_devices(torch: str, built_for: str) -> None:
    """``--gpu`` is CUDA: a torch for devices of other makers is told as such, by its local version or what it says."""
    for build, (devices, tool) in _OTHER_DEVICES.items():
        if build in torch.partition("+")[2] or build == built_for:
            raise ConfigurationError(
                f"--gpu needs CUDA, and torch {torch} is built for {devices}, which are not supported: it would take "
                f"what machine/gpus.py and machine/gpu_watch.py read of NVML, read of {tool}, and a run of the tests "
                "on such devices. Without --gpu everything runs on the CPU"
            )


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


def _folder(config: pytest.Config) -> Path:
    given = _option(config, "baselines")
    if given:
        folder = Path(config.invocation_params.dir, str(given))
        _check_rootdir(config, str(given), folder)
    else:
        beside = config.inipath.parent if config.inipath else config.rootpath
        folder = beside / (str(config.getini("distbench_baselines")) or "baselines")
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{_spell('baselines')}: {folder} is not a folder")
    return folder


def _check_text(root: Path) -> None:
    """Names of files are bytes, and ranks get them as text: in the locale C there are none but ASCII."""
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"the root directory {str(root)!r} is no text in {sys.getfilesystemencoding()}, the encoding of file names "
            "here. Set LC_ALL=C.UTF-8 or PYTHONUTF8=1; if it is utf-8 already, rename the folder"
        ) from None


def _check_rootdir(config: pytest.Config, given: str, folder: Path) -> None:
    """Without an ini file pytest takes an existing folder among the arguments, this option's too, as one of the tests'.

    Its root directory, and with it the name of every test, then depends on whether the store exists already.
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
            f"now {config.rootpath}: stored entries would not be found under the names of the tests. Write "
            f"--distbench-baselines={given}, or put an ini file such as pytest.ini beside the tests"
        )
