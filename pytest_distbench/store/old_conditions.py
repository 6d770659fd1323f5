"""The conditions of cases in files that did not note them: read out of the names of backend and launcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ELASTIC = "elastic-"


def conditions_of_old(known: Mapping[str, Any], *, fake_rank: int) -> dict[str, Any]:
    """What there is to know, as a file has it now.

    Args:
        known: ``world_size``, ``backend`` and ``launcher``, as far as the file has them.
        fake_rank: that the process stood for, where the backend is ``fake``.
    """
    found = {name: known[name] for name in ("world_size", "backend", "launcher") if name in known}
    launcher = str(found.get("launcher"))
    if launcher == "command":
        found["kind"] = "command"
    elif launcher.startswith(_ELASTIC):
        found |= {"kind": "job", "engine": launcher.removeprefix(_ELASTIC)}
    if found.get("backend") == "fake":
        found["fake_rank"] = fake_rank
    return found
