"""What is installed here: this package's version, and which code is not the user's own."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from pathlib import Path

__version__ = "0.1.0"


def is_installed_here(path: str) -> bool:
    """Whether a path belongs to the running Python or its installed packages, not to the user's own code."""
    return any(Path(path).is_relative_to(folder) for folder in _installation())


@functools.cache
def _installation() -> frozenset[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {str(Path(os.__file__).parent), *site.getsitepackages(), site.getusersitepackages()}
    return frozenset(folders)
