"""The installed releases of torch and Python that ranks run under, and this package's version.

pytest's own process, ``distbench doctor`` and the check of another Python read it, and none of them may import torch.
The code that meets the differences between releases is ``worker/torch_internals.py``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_distbench.errors import ConfigurationError


@functools.cache
def own_version() -> str:
    """The version of pytest-distbench, as it was installed."""
    return importlib.metadata.version("pytest-distbench")


_HIP = re.compile(r"^hip\b[^=\n]*= *['\"]([^'\"]+)['\"]", re.MULTILINE)


@functools.cache
def hip_version() -> str:
    """The version of HIP that the installed torch is built for, or "" if it is built for NVIDIA or the CPU alone."""
    found = importlib.util.find_spec("torch")
    try:
        text = Path(found.origin).with_name("version.py").read_text() if found and found.origin else ""
    except OSError:
        return ""
    version = _HIP.search(text)
    return version[1] if version else ""


def is_installed_here(path: str) -> bool:
    """Whether a path belongs to the running Python or its installed packages, not to the user's own code."""
    return bool(installed_folder(path))


def installed_folder(path: str) -> str:
    """The folder of the running Python or its installed packages that a path lies in, or ""."""
    return next((folder for folder in _installation() if path == folder or path.startswith(f"{folder}{os.sep}")), "")


def move_editables(move: Callable[[str], str]) -> None:
    """Change the folders of editable installs in their import hooks, which ignore ``sys.path``; ``move`` maps a path.

    Setuptools makes a module for each, with the folders of packages in ``MAPPING``, those of namespaces in
    ``NAMESPACES``.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable___"):
            packages, namespaces = (getattr(module, table, {}) for table in ("MAPPING", "NAMESPACES"))
            packages.update({package: move(folder) for package, folder in packages.items()})
            namespaces.update({package: [*map(move, folders)] for package, folders in namespaces.items()})


@functools.cache
def _installation() -> frozenset[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {str(Path(os.__file__).parent), *site.getsitepackages(), site.getusersitepackages()}
    return frozenset(folders)


Release = tuple[int, int]  # major and minor: what differs, differs between minor releases

OLDEST_PYTHON: Release = (3, 11)

TESTED: Mapping[Release, tuple[str, ...]] = MappingProxyType(
    {
        (2, 8): ("3.13",),
        (2, 9): ("3.13",),
        (2, 10): ("3.13",),
        (2, 11): ("3.12",),
        (2, 12): ("3.13",),
        (2, 13): ("3.11",),
        (2, 14): ("3.13",),
        (2, 15): ("3.11",),
    }
)
"""Release of torch -> the releases of Python under which all tests of its row in docs/dev/versions.md passed."""

OLDEST_TORCH, NEWEST_TORCH = min(TESTED), max(TESTED)


NUMA_SINCE: Release = (2, 9)  # since then torch binds ranks to the CPUs near their GPUs

RECORDER_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
RECORDER_FILE_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"  # what sizes the flight recorder, and where NCCL's is dumped

GENERATED_MODULE = "_remote_module_non_scriptable"
"""Module that older releases of torch write to a temporary folder in each process and import from there."""


def release_of(version: str) -> Release:
    """The release of a version: ``2.14.1+cu130`` -> (2, 14); (0, 0) for a text without two numbers."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_torch(version: str, who: str = "") -> None:
    """Refuse a torch that ranks cannot run under.

    Args:
        who: what needs torch; the message begins with it.

    Raises:
        ConfigurationError: the version is older than :data:`OLDEST_TORCH`.
    """
    if release_of(version) < OLDEST_TORCH:
        raise ConfigurationError(
            f"{who}torch {version}; ranks need {text(OLDEST_TORCH)} or later: pip install 'torch>={text(OLDEST_TORCH)}'"
        )


def untested(version: str) -> str:
    """A sentence that says a version of torch was never tested, or "" if it was."""
    release = release_of(version)
    if release in TESTED:
        return ""
    return f"torch {text(release)} is newer than any we have tested; the nearest is {text(nearest(release))}"


def nearest(release: Release) -> Release:
    """The tested release nearest to a release; there are no gaps between the oldest and the newest."""
    return min(release, NEWEST_TORCH)


def text(release: Release) -> str:
    return ".".join(map(str, release))
