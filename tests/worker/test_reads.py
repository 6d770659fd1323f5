"""What a rank notes of the files that it reads."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from pathlib import Path

from pytest_distbench.worker.reads import read_notes

READS = """
import os, sys
from pytest_distbench.worker.reads import note_reads

root, notes = sys.argv[1:]
note_reads(root, notes, 1)
os.chdir(root)
open("once.txt").read()
open(os.path.join(notes, "link", "linked.txt")).read()
sys.path.insert(0, root)
import generated
open(os.path.join(root, "once.txt"), "rb").read()
open("written.txt", "w").close()
os.listdir("folder")
open(0, closefd=False)
if os.fork():
    os.wait()
else:
    open("of_a_worker.txt").read()
    os._exit(0)
try:
    open("nowhere.txt")
except FileNotFoundError:
    pass
"""


def test_a_rank_notes_what_it_and_its_workers_read_below_a_folder(tmp_path: Path) -> None:
    """Runs in its own process, as an audit hook stays."""
    root, notes = tmp_path / "repository", tmp_path / "launch"
    (root / "folder").mkdir(parents=True)
    notes.mkdir()
    for name in ("once.txt", "of_a_worker.txt", "linked.txt", "generated.py"):
        (root / name).touch()
    (notes / "link").symlink_to(root)
    py_compile.compile(str(root / "generated.py"))
    subprocess.run([sys.executable, "-c", READS, str(root), str(notes)], check=True, stdin=subprocess.DEVNULL)
    (notes / "reads.log").touch()

    names = {"once.txt", "folder", "of_a_worker.txt", "nowhere.txt", "linked.txt", "generated.py"}
    assert read_notes(str(notes)) == {str(root / name) for name in names}
