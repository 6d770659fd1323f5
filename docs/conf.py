"""Sphinx: the pages of this folder as a site. `make docs` builds it; a warning is an error."""

from pathlib import Path

project = "pytest-distbench"
project_copyright = "the founders of pytest-distbench"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False  # it makes a dash of the two of an option

html_theme = "furo"
html_title = project
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))

myst_enable_extensions = ["linkify"]
myst_heading_anchors = 4
