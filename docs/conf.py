"""Sphinx: the pages of this folder as a site. `make docs` builds it; a warning is an error."""

project = "pytest-distbench"
project_copyright = "the founders of pytest-distbench"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = project

myst_enable_extensions = ["linkify"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
