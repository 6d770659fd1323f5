"""A simulated tree of control groups, and whether this machine lets us make real ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pytest_distbench.errors import AroundUnavailable
from pytest_distbench.machine.locks import Version, cpu_group, find_controller, make_group, remove

MOUNTS = """
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
32 31 0:29 {top} /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
41 31 0:38 {top} /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PLACES: dict[Version, str] = {1: "cpu", 2: "unified"}


class SimulatedGroups:
    """A system whose cpu controller is of one version; this process is in the group ``/jobs/mine``.

    As the kernel's, a folder is removed with the files in it, and not while a process is in the group.
    """

    def __init__(self, root: Path, version: Version, patch: pytest.MonkeyPatch, *, top: str = "/") -> None:
        self.root = root
        own = "4:cpu:/jobs/mine\n0::/\n" if version == 1 else "4:memory:/\n0::/jobs/mine\n"
        self.folder = root / "sys/fs/cgroup" / PLACES[version] / Path("/jobs/mine").relative_to(top)
        self.folder.mkdir(parents=True)
        if version == 2:
            (self.folder / "cgroup.controllers").write_text("cpu pids")
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(own)
        (root / "proc/self/mountinfo").write_text(MOUNTS.format(top=top).lstrip())
        self._rmdir = os.rmdir
        patch.setattr(os, "rmdir", self.rmdir)

    def rmdir(self, path: str | Path, **options: int | None) -> None:
        group = Path(path)
        if group.parent == self.folder and group.is_dir():
            if (group / "cgroup.procs").exists():
                raise OSError(errno.EBUSY, "Device or resource busy", str(group))
            for file in group.iterdir():
                file.unlink()
        self._rmdir(path, **options)

    def groups(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("distbench-*"))


def why_no_groups() -> str:
    """Why this machine does not let us make any, or ""."""
    try:
        controller = find_controller()
        make_group(cpu_group(controller, 10**6), 0.5)
    except AroundUnavailable as error:
        return str(error)
    remove(cpu_group(controller, 10**6))
    return ""
