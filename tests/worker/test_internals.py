"""Private parts of torch and of Python: they are there, used in one place, and documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_distbench"
HOME = PACKAGE / "worker" / "torch_internals.py"
OTHERS = [
    PACKAGE / place
    for place in ("elastic/engines/fast_agent.py", "forecast/trace.py", "layouts/precision.py", "layouts/simulated.py")
]
HOMES = [path for path in (HOME, *OTHERS) if path.is_file()]
"""The others do not run where a part that they use is missing."""


def private_names(path: Path) -> Iterator[str]:
    """Private names of torch that a module reaches by the names under which it imported torch's modules."""
    tree = ast.parse(path.read_text())
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (parts := (node.module or "").split("."))[0] == "torch":
            modules |= {alias.asname or alias.name for alias in node.names}
            yield from (name for name in [*parts, *(alias.name for alias in node.names)] if name.startswith("_"))
        elif isinstance(node, ast.Import):
            modules |= {"torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in modules:
                yield node.attr


def test_private_parts_of_torch_are_used_in_their_homes() -> None:
    loads = re.compile(r"^\s*(?:from|import) torch", re.MULTILINE)
    homes = {path for path in PACKAGE.rglob("*.py") if loads.search(path.read_text()) and any(private_names(path))}

    assert homes == {*HOMES}


@pytest.mark.parametrize("home", HOMES, ids=lambda path: path.stem)
def test_the_documents_name_every_private_part(home: Path) -> None:
    nodes = list(ast.walk(ast.parse(home.read_text())))
    attributes = [n for n in nodes if isinstance(n, ast.Attribute) and re.match(r"_[a-zA-Z]", n.attr)]
    ours = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    ours |= {n.attr for n in attributes if isinstance(n.ctx, ast.Store)}
    torchs = {
        n.attr
        for n in attributes
        if ast.unparse(n.value) != "os" and (ast.unparse(n.value) != "self" or n.attr not in ours)
    }
    torchs |= {name for n in nodes if isinstance(n, ast.Constant) and re.fullmatch(r"_[a-z]\w+", name := str(n.value))}

    assert torchs
    assert torchs - set(re.findall(r"\w+", (ROOT / "docs" / "dev" / "architecture.md").read_text())) == set()


@pytest.mark.parametrize(
    "code",
    [
        "forget_parents_exit()",
        "wait_for_threads()",
        "run_exit_handlers()",
        "place_sockets('/x'); import multiprocessing as m; assert m.util.get_temp_dir() == '/x'",
        "name_semaphores('/y'); import multiprocessing.synchronize as s; assert s.SemLock._make_name()[:3] == '/y-'",
        "import tempfile; assert isinstance(tempfile.NamedTemporaryFile(), TEMPORARY_FILE)",
    ],
)
def test_a_part_is_there(code: str) -> None:
    command = [sys.executable, "-c", f"from pytest_distbench.worker.forked import *\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
