"""The forkserver's whole preload list, imported nowhere else: imports in that process what a project adds."""

from __future__ import annotations

from pytest_distbench.worker import preloaded

preloaded.load(preloaded.PROJECTS)
