"""Writes the table of `tfdist/plan/decisions.py` into docs/planning.md: `make decisions`."""

from __future__ import annotations

import sys

from benchmarks import pages
from benchmarks.common import tables
from tfdist.plan import decisions

PAGE = pages.ROOT / "docs" / "planning.md"


def text() -> str:
    """The table in Markdown."""
    head, *rows = decisions.table()
    return "\n".join(tables.table(head, rows, "t"))


if __name__ == "__main__":
    print(text())
    if "--update" in sys.argv:
        pages.update(PAGE, "decisions", text())
