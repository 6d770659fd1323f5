"""``python -m pytest_distbench`` is the command ``distbench``."""

from __future__ import annotations

import sys

from pytest_distbench.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
