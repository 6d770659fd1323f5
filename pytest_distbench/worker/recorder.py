"""torch's flight recorder: the last collectives of this process, with their numbers, types, sizes and groups."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path


def dump(path: Path, groups: Path) -> None:
    """Write the recorder's content, and before it the ranks of every group, as JSON, whole or not at all.

    Empty documents where torch has no recorder. Best effort: it runs while the process is already in trouble.
    """
    content: str | bytes = b"{}"
    members: dict[str, list[int]] = {}
    with contextlib.suppress(Exception):
        import torch
        from torch.distributed import distributed_c10d

        world = distributed_c10d._world
        members = {world.pg_names[group]: sorted(ranks) for group, ranks in world.pg_group_ranks.items()}
        content = torch._C._distributed_c10d._dump_fr_trace_json(  # type: ignore[attr-defined] # not in its stub
            includeCollectives=True
        )
    _write(groups, json.dumps(members).encode())
    _write(path, content.encode() if isinstance(content, str) else content)


def _write(path: Path, content: bytes) -> None:
    with contextlib.suppress(OSError):
        draft = path.with_suffix(".tmp")
        draft.write_bytes(content)
        draft.rename(path)
