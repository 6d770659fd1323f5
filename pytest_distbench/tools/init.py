"""``distbench init``: a suite, workflows and a baseline directory for a repository; nothing is overwritten."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_distbench import git
from pytest_distbench.commands import Subcommand
from pytest_distbench.errors import DistbenchError
from pytest_distbench.machine import gpus, hardware
from pytest_distbench.releases import own_version

_TEMPLATE = Path(__file__).with_name("template")
_PACKAGE = "pytest-distbench"
_USUAL_RANKS = 2
_USUAL_BRANCH = "main"
_USUAL_TORCH = "2.13.0"
_IS_EVENT = "github.event_name == 'pull_request'"
_IS_PUSHED = "startsWith(github.ref_name, 'pull-request/')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The facts about a repository, and about this machine, that templates need.

    Attributes:
        branch: name of the branch that pull requests go to.
        baselines: path of the baseline directory.
        ranks: number of ranks of a run.
        on_gpus: whether runs have a GPU per rank.
        is_here: whether this machine can run the suite.
        requirement: pip's requirement of this package.
        install: further arguments of pip for the repository's own dependencies, quoted for a shell.
        is_installable: whether other machines can install this package by ``requirement``, too.
    """

    branch: str
    baselines: str
    ranks: int
    on_gpus: bool
    is_here: bool
    requirement: str
    install: str
    is_committed_to: bool
    is_installable: bool

    @property
    def run(self) -> str:
        return f"pytest suites/ --world-size {self.ranks}{' --gpu' * self.on_gpus}"

    @property
    def gate(self) -> str:
        """The command that checks exact numbers in one process, on any machine."""
        return f"pytest suites/ --world-size {self.ranks} --distbench-backend=fake"

    def fill(self, name: str) -> str:
        """Fill a template; a line with INCLUDE is replaced by another template with its indentation."""
        torch = hardware.installed_version("torch").partition("+")[0]
        values = {
            "WORLD_SIZE": str(self.ranks),
            "BRANCH": self.branch,
            "PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}",
            "TORCH": torch if torch[0].isdigit() else _USUAL_TORCH,
            "REQUIREMENT": self.requirement,
            "INSTALL": self.install and f" {self.install}",
            "RUN": self.run,
            "GATE": self.gate,
            "IS_PULL_REQUEST": _IS_PUSHED if self.on_gpus else _IS_EVENT,
            "RUNNER": "[self-hosted, linux, gpu]" if self.on_gpus else "ubuntu-latest",
            "HOST": "gpu" if self.on_gpus else "ubuntu-latest",
        }
        text = (_TEMPLATE / name).read_text()
        text = re.sub(r"( *)INCLUDE (.+)\n", lambda found: textwrap.indent(self.fill(found[2]), found[1]), text)
        return re.sub("<([A-Z_]+)>", lambda found: values[found[1]], text)


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=Path(),
        help="root of the repository (default: this folder)",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="workflows for self-hosted runners with GPUs (default: where this machine has some)",
    )
    parser.add_argument(
        "--world-size",
        metavar="N",
        type=int,
        help=f"ranks of a run (default: one for each GPU here, else {_USUAL_RANKS})",
    )


def _init(options: argparse.Namespace) -> Iterator[str]:
    folder: Path = options.folder
    found = find_out(folder, gpu=options.gpu, ranks=options.world_size)
    files = {
        "suites/test_step.py": "test_step.py.txt",
        "conftest.py": "conftest.py.txt",
        f"{found.baselines}/README.md": "baselines.md.txt",
        ".github/workflows/distbench.yml": "gpu.yml.txt" if found.on_gpus else "hosted.yml.txt",
        ".github/workflows/distbench-baselines.yml": "record.yml.txt",
    }
    longest = max(map(len, files))
    to_replace = []
    has_suite = os.path.lexists(folder / "suites/test_step.py")
    for path, name in files.items():
        is_new = _write_new(folder / path, found.fill(name))
        yield f"wrote  {path}" if is_new else f"kept   {path:{longest}}  it was there"
        is_workflow = path.endswith(".yml") and (folder / path).is_file()
        lines = enumerate((folder / path).read_text(errors="replace").splitlines(), 1) if is_workflow else ()
        to_replace += [f"  {path}:{number}" for number, line in lines if found.requirement in line]
    added = _add_lines(folder / ".gitignore", found.fill("gitignore.txt"))
    yield f"added  .gitignore: {', '.join(added)}" if added else f"kept   {'.gitignore':{longest}}  it was there"
    of_gate = (folder / found.baselines / "any").rglob("*.fake.*.json")
    if has_suite:
        is_recorded = any(of_gate)
    else:
        yield f"recording what its gate compares with: {found.gate}"
        is_recorded = record(folder, found.gate)
        yield from (f"wrote  {path.relative_to(folder)}" for path in sorted(of_gate))
    if _ask_git(folder, "check-ignore", f"{found.baselines}/platform/case.json"):
        yield ""
        yield f".gitignore has {found.baselines}: take it out of there, as baselines are committed"
    if to_replace and not found.is_installable:
        yield ""
        yield f"{found.requirement} was not installed from an index. Unless runners find it on one,"
        yield f"put a git URL ({_PACKAGE} @ git+https://...) or that of a wheel in its place:"
        yield from to_replace
    enter = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    begin = [] if found.is_committed_to else ["git init"]
    yield ""
    yield "next:"
    tops = " ".join(dict.fromkeys(path.split("/")[0] for path in [*files, ".gitignore"]))
    commit = f"git add {tops} && git commit -m 'Tests of performance'"
    gate = [] if is_recorded else [f"{found.gate} --distbench-update=new"]
    if found.is_here:
        yield f"  {' && '.join([*enter, *begin, *gate, f'{found.run} --distbench-update=new'])}"
        yield f"  {commit}"
        yield f"  {found.run}"
        yield "The first command records baselines of this machine; the last one fails if the step gets slower."
        yield "Once suites/ has tests of your own, record what the gate on hosted runners compares with again:"
        yield f"  {found.gate} --distbench-update --distbench-prune"
    else:
        yield f"  {' && '.join([*enter, *begin, *gate, commit])}"
        yield "  gh workflow run distbench-baselines.yml"
        yield f"The second command records baselines on your runner, once {found.branch} is pushed with these files."


def record(folder: Path, gate: str) -> bool:
    """Record the gate's baselines in another process; return whether that worked."""
    command = [sys.executable, *shlex.split(f"-m {gate} --distbench-update=new")]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def find_out(folder: Path, *, gpu: bool = False, ranks: int | None = None) -> Repository:
    """Find what a first suite depends on; ``gpu`` and ``ranks`` override what this machine has.

    Raises:
        DistbenchError: it is no folder, or one inside of a repository.
    """
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: give the root of your repository")
    top = _ask_git(folder, "rev-parse", "--show-toplevel")
    if top and Path(top) != folder.resolve():
        raise DistbenchError(f"{folder} is inside the repository {top}, whose workflows lie at its root: give {top}")
    remote = _ask_git(folder, "symbolic-ref", "--short", "refs/remotes/origin/HEAD").partition("/")[2]
    needs = {"requirements.txt": "-r requirements.txt", "pyproject.toml": "-e .", "setup.py": "-e ."}
    install = dict.fromkeys(option for name, option in needs.items() if (folder / name).exists())
    wanted, is_installable = _requirement()
    usual = [f"refs/{place}/{name}" for name in (_USUAL_BRANCH, "master") for place in ("heads", "remotes/origin")]
    known = _ask_git(folder, "for-each-ref", "--format=%(refname:lstrip=-1)", *usual).partition("\n")[0]
    if ranks is not None and ranks < 1:
        raise DistbenchError(f"--world-size {ranks}: wanted 1 or more")
    here = len(gpus.read_gpus(os.environ).visible)
    ranks = ranks or here or _USUAL_RANKS
    return Repository(
        branch=remote or known or _ask_git(folder, "branch", "--show-current") or _USUAL_BRANCH,
        baselines=_baselines_of(folder),
        ranks=ranks,
        on_gpus=gpu or here > 0,
        is_here=ranks <= here if gpu or here else True,
        requirement=wanted,
        install=" ".join(install),
        is_committed_to=bool(top),
        is_installable=is_installable,
    )


def _baselines_of(folder: Path) -> str:
    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"):
        text = (folder / name).read_text(errors="replace") if (folder / name).is_file() else ""
        if found := re.search(r"""^distbench_baselines *= *["']?([^"'#\n]*[^"'#\s/])""", text, re.MULTILINE):
            return found[1]
    return "baselines"


def _requirement() -> tuple[str, bool]:
    """pip's requirement of this package, and whether it works on other machines: not for an install from a folder."""
    try:
        text = metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return f"{_PACKAGE}=={own_version()}", False
    origin = json.loads(text) if text else {}
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{_PACKAGE} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}", True
    if origin.get("url", "").startswith("https://"):
        return f"{_PACKAGE} @ {origin['url']}", True
    return f"{_PACKAGE}=={own_version()}", not origin


def _ask_git(folder: Path, *arguments: str) -> str:
    try:
        done = git.run(folder, *arguments)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _write_new(path: Path, text: str) -> bool:
    if os.path.lexists(path):
        return False
    with _refused(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    return True


def _add_lines(path: Path, text: str) -> list[str]:
    """Append the lines that a file neither has nor negates, and return them."""
    with _refused(path):
        old = path.read_bytes() if path.exists() else b""
        known = {line.strip().strip(b"!/") for line in old.splitlines()}
        added = [line for line in text.splitlines() if line.strip("/").encode() not in known]
        end = b"\r\n" if b"\r\n" in old else b"\n"
        if added:
            with path.open("ab") as file:
                file.write(end * (old[-1:] not in {b"", b"\n"}) + b"".join(line.encode() + end for line in added))
    return added


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        in_the_way = isinstance(error, (FileExistsError, IsADirectoryError, NotADirectoryError))
        todo = "move what is in its place" if in_the_way else "make its folder writable"
        message = f"cannot write {path}: {error.strerror or error}; {todo}, and run this again: it keeps what is there"
        raise DistbenchError(message) from error


INIT = Subcommand(
    "write a first suite, workflows and a baseline directory into a repository; overwrites nothing", _add_init, _init
)
