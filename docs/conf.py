"""Configuration of the documentation, built with `make docs`."""

import re

import tfdist

project = "tfdist"
author = "the tfdist authors"
release = version = tfdist.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
# Headings that other pages and parts of a page refer to.
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"tfdist {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Signatures that are set, as those of strategies, have parameters that the source has not.
autodoc_preserve_defaults = False
napoleon_numpy_docstring = False


def _mark_code(app, what, name, obj, options, lines):
    """Docstrings write `code` as in Markdown; reStructuredText wants two backticks."""
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app):
    """Registers the conversion ahead of napoleon's, which runs at priority 500."""
    app.connect("autodoc-process-docstring", _mark_code, priority=400)
