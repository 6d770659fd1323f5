#!/usr/bin/env bash
# HTA takes a compact trace for rank 0's: HolisticTraceAnalysis 0.5.0, Python 3.11.
#
# HTA learns the rank of a trace by a search in its text for `"rank":`, at least one blank, and digits. A file that is the same JSON without
# blanks, as most fast writers make it, has no rank then. Such files count as rank 0's, so of all ranks in a folder one is left, with a warning.
#
# Seen: two files with `"distributedInfo": {"rank": 0}` and `1` give the ranks 0 and 1; the same two, written without blanks, give rank 0 alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet HolisticTraceAnalysis==0.5.0 psutil 2> "$folder/pip.log" || { cat "$folder/pip.log"; exit 1; }
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys
from pathlib import Path

from hta.common.trace_file import get_trace_files

found = {}
for name, separators in (("with blanks", (", ", ": ")), ("compact", (",", ":"))):
    Path(name).mkdir()
    for rank in (0, 1):
        trace = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": []}
        Path(name, f"rank{rank}.json").write_text(json.dumps(trace, separators=separators))
    found[name] = sorted(get_trace_files(name))
    print(f"{name}: ranks {found[name]}")
if found != {"with blanks": [0, 1], "compact": [0]}:
    sys.exit("the behaviour has changed")
PYTHON
