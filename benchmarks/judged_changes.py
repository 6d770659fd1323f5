"""What ``--distbench-judge=base`` says of changes that loosen their own gate, and of healthy ones.

    python benchmarks/judged_changes.py [--only NAME]

Makes a git repository of a library, its test and a baseline. A loosening change lets the library need twice the bytes
and bends what would tell. Each change is judged by itself, by interleaved A/B with ``main`` or by its stored baseline,
and then by ``main``. Printed per change: both answers, what failed, and the files that were not used. It ends with 1 if
a loosening change is not green by itself and red by its base.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest_distbench

LIBRARY = """
    import os

    def size(layers):
        return int(os.environ.get("LIBRARY_SIZE") or 100 + 0 * layers)
"""
TWICE = LIBRARY.replace("0 * layers", "100 * layers")
SKIPS = "import unittest\n\ndef size(layers):\n    raise unittest.SkipTest('not here')\n"
TEST = """
    import pytest
    from library import size

    def body(rank):
        rank.record("size", size(rank.params["layers"]), unit="B", better="lower")
        rank.record("other", 1, unit="B", better="lower")

    @pytest.fixture
    def layers():
        return 1

    def test_size(distbench, layers):
        distbench.run(body, params={"layers": layers})
"""
INI = "[pytest]\npythonpath = .\n"
BASE = {
    "library.py": LIBRARY,
    "test_it.py": TEST,
    "pytest.ini": INI,
    "conftest.py": "",
    ".gitignore": "tmp/\n__pycache__/\n",
}
LENIENT = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport():
        report = yield
        report.outcome, report.longrepr = "passed", None
        return report
"""
STORED = ("--world-size=1", "--distbench-launches=3:3", "--distbench-platform=here", "-pno:cacheprovider")
AGAINST = (*STORED, "--distbench-against=main")
PYTEST, JUDGE = (
    ("-P", "-m", *words) for words in (("pytest", "--distbench-judge=base"), ("pytest_distbench", "judge"))
)


def _marked(marker: str) -> str:
    return TEST.replace("def test_size", f"@pytest.mark.{marker}\n    def test_size")


def _doubled_baseline(folder: Path) -> None:
    for stored in (folder / "baselines").rglob("*.json"):
        stored.write_text(stored.read_text().replace("100", "200"))


def _copied_package(folder: Path) -> None:
    """With a plugin in which whatever was reported has passed."""
    copy = folder / "pytest_distbench"
    shutil.copytree(Path(pytest_distbench.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    plugin = copy / "plugin" / "__init__.py"
    lenient = "report = yield\n    report.outcome, report.longrepr = 'passed', None\n"
    plugin.write_text(plugin.read_text().replace("report = yield\n", lenient))


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a change writes, by file; None: it deletes it. ``edit`` does the rest.

    Attributes:
        by_itself: how it is judged without the base.
        by_base: the words that start pytest where the base judges.
    """

    files: Mapping[str, str | None]
    edit: Callable[[Path], None] = field(default=lambda folder: None)
    by_itself: Sequence[str] = AGAINST
    by_base: Sequence[str] = PYTEST

    def make(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.unlink() if text is None else path.write_text(textwrap.dedent(text))
        self.edit(folder)


def _loosening(files: Mapping[str, str], **more: object) -> Change:
    return Change(files={"library.py": TWICE, **files}, **more)  # type: ignore[arg-type]


LOOSENING = {
    "tolerance": _loosening({"pytest.ini": f"{INI}distbench_against_tolerance = 500 %\n"}),
    "marker": _loosening({"test_it.py": _marked('distbench(metrics=["other"])')}),
    "conftest": _loosening({"conftest.py": 'import os\nos.environ["LIBRARY_SIZE"] = "100"\n'}),
    "fixture": _loosening({"test_it.py": TEST.replace("return 1", "return 0")}),
    "baseline": _loosening({}, edit=_doubled_baseline, by_itself=STORED),
    "skip": _loosening({"test_it.py": _marked("skip")}),
    "xfail_perf": _loosening({"test_it.py": _marked('distbench(xfail_perf="later")')}),
    "ini": _loosening({"pytest.ini": f"{INI}addopts = --distbench-advisory\n"}),
    "plugin": _loosening({"pytest.ini": f"{INI}addopts = -p lenient\n", "lenient.py": LENIENT}),
    "a copy of our package": _loosening({}, edit=_copied_package, by_base=JUDGE),
    "library": _loosening({"library.py": SKIPS}),
    "body": _loosening({"test_it.py": TEST.replace('size(rank.params["layers"])', "100")}),
}
HEALTHY = {
    "a function with its test": Change(
        files={
            "library.py": f"{LIBRARY}\n    def bits(layers):\n        return 8 * size(layers)\n",
            "test_bits.py": "from library import bits\n\ndef test_bits():\n    assert bits(1) == 800\n",
        }
    ),
    "needs less, and a bound keeps it": Change(
        files={
            "library.py": LIBRARY.replace("or 100", "or 50"),
            "test_it.py": _marked('distbench(bounds={"size": "60B"})'),
        }
    ),
    "a package in place of a file": Change(
        files={
            "library.py": None,
            "library/__init__.py": "from library.sizes import size\n",
            "library/sizes.py": LIBRARY,
            "conftest.py": "collect_ignore = ['library']\n",
        }
    ),
    "another name, in the test too": Change(
        files={
            "library.py": LIBRARY.replace("size(", "size_of("),
            "test_it.py": TEST.replace("import size", "import size_of").replace(" size(", " size_of("),
        }
    ),
    "needs more on purpose": Change(files={"library.py": TWICE}, edit=_doubled_baseline, by_itself=STORED),
}


_SAID = re.compile(
    r"^(?:\w+Error: .*|size .* against .*|launch .* which judges|  \S+ \((?:new|changed|deleted)\))$", re.MULTILINE
)


def run(folder: Path, *words: str) -> tuple[int, str]:
    """A Python in a folder: its exit code and what it prints."""
    variables = {**os.environ, "LIBRARY_SIZE": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=b", "-c", "user.email=b@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def make_base(folder: Path) -> None:
    """The repository before any change, on ``main``, with its baseline."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    Change(files=BASE).make(folder)
    code, told = run(folder, "-m", "pytest", *STORED, "--distbench-update=all")
    if code:
        raise SystemExit(told)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")


def propose(change: Change, folder: Path) -> None:
    """Commit a change on a branch."""
    git(folder, "switch", "-q", "-c", "change")
    change.make(folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", default="")
    only = parser.parse_args().only
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        base = Path(place, "base")
        make_base(base)
        for title, changes in (("loosens its gate", LOOSENING), ("healthy", HEALTHY)):
            print(f"{title:<34}by itself  by its base  what failed, and what was not used")
            for name, change in changes.items():
                if only not in name:
                    continue
                folder = Path(shutil.copytree(base, Path(place, "change"), symlinks=True))
                propose(change, folder)
                alone, _ = run(folder, "-m", "pytest", *change.by_itself)
                judged, told = run(folder, *change.by_base, *AGAINST)
                shutil.rmtree(folder)
                is_loose = changes is LOOSENING
                wrong += is_loose and (alone, judged) != (0, 1)
                answers = ("red" if alone else "green", "red" if judged else "green")
                print(f"{name:<34}{answers[0]:<11}{answers[1]:<13}{'; '.join(_SAID.findall(told))}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
