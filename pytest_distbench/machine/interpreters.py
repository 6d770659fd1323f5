"""Another Python: what it has, and what it needs to run ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.releases import OLDEST_PYTHON, check_torch, text

NEEDED = ("torch", "numpy", "msgspec", "psutil")
"""What a rank imports; of this package itself the code that runs here is used."""

_PROBE_TIMEOUT_S = 60.0
_PROBE = """
import json, sys
from importlib import metadata
found = {}
for name in %r:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([list(sys.version_info[:3]), found, sys.path]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python executable that can run ranks."""

    executable: Path
    versions: Mapping[str, str]
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"torch {self.versions['torch']}, python {self.versions['python']}"


def find_interpreter(given: str, folder: Path) -> Interpreter:
    """Ask a Python what it has, without importing any of it."""
    option = f"--distbench-against-python {given}"
    executable = folder / Path(given).expanduser()
    if os.sep not in given and not executable.exists() and (on_path := shutil.which(given)):
        executable = Path(on_path)
    if executable.is_dir():
        raise ConfigurationError(f"{option}: that is a folder; give the executable, for example {given}/bin/python")
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    try:
        done = subprocess.run(
            [executable, "-c", _PROBE % (NEEDED,)],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
        version, found, path = json.loads(done.stdout)
    except OSError as error:
        raise ConfigurationError(f"{option}: cannot run {executable}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"{option}: {executable} did not answer for {_PROBE_TIMEOUT_S:g} s; is it a Python?"
        ) from None
    except (ValueError, TypeError):
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ConfigurationError(f"{option}: does not answer as a Python 3 does: {said[:200]}") from None
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise ConfigurationError(
            f"{option}: Python {'.'.join(map(str, version))}; ranks need {text(OLDEST_PYTHON)} or later"
        )
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise ConfigurationError(
            f"{option}: it lacks {', '.join(missing)}; {executable} -m pip install {' '.join(missing)}"
        )
    check_torch(found["torch"], f"{option}: ")
    versions = {"python": ".".join(map(str, version)), **found}
    return Interpreter(executable, versions, tuple(p for p in path if p))
