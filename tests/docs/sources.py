"""What the pages that describe the package are compared with: the package's own source text."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "tfdist"
_VARIES = "…"


@functools.cache
def trees():
    """The syntax trees of all modules, by their paths."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def strings():
    """All texts in the package; what an f-string puts in is "…"."""
    return [text for tree in trees().values() for node in ast.walk(tree) if (text := _text(node))]


def _text(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or _VARIES for value in node.values)
    return None


def folders():
    """The modules that are in a folder of the package."""
    return [path for path in trees() if path.parent != PACKAGE]


def names(pattern):
    """What matches `pattern` in the package, outside of longer names."""
    found = set()
    for path in trees():
        found |= set(re.findall(rf"(?<![A-Za-z_])(?:{pattern})(?![A-Za-z_])", path.read_text()))
    return found


def message(text):
    """Whether the package has a text with the parts of `text` that "…" divides, in their order."""
    parts = [re.escape(part.strip()) for part in text.split(_VARIES) if part.strip()]
    pattern = re.compile(".*".join(parts), re.S)
    return any(pattern.search(string) for string in strings())


def table_rows(page):
    """The cells of all rows of the tables of a page, without their heads."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    heads = [index - 1 for index, line in enumerate(lines) if set(line) <= set("|-: ")]
    skipped = {*heads, *(index + 1 for index in heads)}
    return [row for index, row in enumerate(rows) if index not in skipped]
