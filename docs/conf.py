"""Configuration of the documentation, built with `make docs`, `make docs-versions`."""

import os
import re
import sys
from pathlib import Path

# The pages of a version describe the code beside them, not the one that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tfdist  # noqa: E402

project = "tfdist"
author = "the tfdist authors"
release = version = tfdist.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "templates"]
# Headings that other pages and parts of a page refer to.
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"tfdist {release}"
templates_path = ["templates"]
# Those of furo, and the list of versions, which is empty after `make docs`.
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/versions.html",
        "sidebar/scroll-end.html",
    ]
}
if "POLYVERSION_DATA" in os.environ:
    from sphinx_polyversion.api import load

    load(globals())

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
