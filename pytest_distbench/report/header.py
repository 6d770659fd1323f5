"""The lines before the first test: what is measured on what, and against which baselines."""

from __future__ import annotations

from pytest_distbench import __version__
from pytest_distbench.session import Session


def header_lines(session: Session) -> list[str]:
    """Two lines; three in an update."""
    settings = session.settings
    environment = session.environment({})
    sizes = ", ".join(map(str, settings.world_sizes))
    on = f"{len(settings.gpus)} GPUs ({environment.device})" if settings.gpu else f"{environment.cores} CPU cores ({environment.device})"
    files = sum(1 for _ in session.store.files())
    lines = [
        f"distbench {__version__}: world size {sizes}, {settings.backend}, {on}, torch {environment.software['torch']}, "
        f"{settings.launcher} launcher",
        f"distbench: baselines {settings.baselines / environment.platform} ({files} file{'s' * (files != 1)})",
    ]
    if settings.update:
        lines.append(f"distbench: update={settings.update}, {settings.update_launches} launches a case; baselines will be written")
    return lines
