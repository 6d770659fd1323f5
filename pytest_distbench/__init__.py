"""Performance and accuracy regression tests for distributed PyTorch."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """The version, looked up when it is asked for: a pytest run that does not use the plugin imports nothing for it."""
    if name == "__version__":
        from pytest_distbench.installation import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
