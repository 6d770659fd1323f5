"""Nobody has chosen how far a layout may be off."""

from __future__ import annotations

import ast
from pathlib import Path

from pytest_distbench import layouts

HARMLESS = {0.0, 1.0, 2.0}
"""Zero and one; and the base of the scale of a loss in float16."""


def test_no_file_of_the_extension_has_a_tolerance() -> None:
    found = [
        (path.name, node.lineno, node.value)
        for path in Path(layouts.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value not in HARMLESS
    ]

    assert found == []
