"""The comparison of revisions: which package is measured, in what order, and what is concluded."""

from __future__ import annotations

import json
import os
import sys

import pytest

from benchmarks import revisions
from benchmarks.common import runner
from tests.benchmarks.running import ROOT, run

in_a_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")

# Stands for `revisions_cell.py`: its tfdist says how long a call takes, and notes each call.
STUB = """
import pathlib, tfdist
from benchmarks.common import turns

def seconds(calls):
    with open(pathlib.Path(tfdist.__file__).parents[2] / "order", "a") as file:
        print(tfdist.NAME, calls, file=file)
    return tfdist.SECONDS

found = {"package": tfdist.__file__, "result": tfdist.RESULT, "calls": tfdist.CALLS}
turns.take_turns(found, seconds)
"""


@pytest.fixture
def trees(tmp_path, monkeypatch):
    """Two packages, of which the new one is twice as fast; they are measured by the stub."""
    monkeypatch.setattr(revisions.Cell, "command", lambda self: [sys.executable, "-c", STUB])
    made = {}
    for name, seconds, calls in (("old", 0.5, 3), ("new", 0.25, 2)):
        made[name] = tmp_path / name
        (made[name] / "tfdist").mkdir(parents=True)
        text = f"NAME, SECONDS, CALLS, RESULT = {name!r}, {seconds}, {calls}, 1.5"
        (made[name] / "tfdist" / "__init__.py").write_text(text)
    return made


CELL = revisions.Cell(())


def test_revisions_take_turns_with_as_many_calls(trees, tmp_path):
    found = revisions.launch(CELL, trees, 2)
    assert found == {"old": [500.0] * 2, "new": [250.0] * 2}
    assert revisions.ratios(found) == [0.5, 0.5]
    assert (tmp_path / "order").read_text().splitlines() == ["old 3", "new 3", "new 3", "old 3"]


def test_revisions_that_compute_something_else_are_not_compared(trees):
    package = trees["new"] / "tfdist" / "__init__.py"
    package.write_text(package.read_text().replace("1.5", "1.6"))
    with pytest.raises(RuntimeError, match="compute the same. Received: 1.5 and 1.6"):
        revisions.launch(CELL, trees, 1)


def test_a_package_of_elsewhere_is_not_measured(trees, monkeypatch):
    path = f"{trees['old']}{os.pathsep}{ROOT}"
    monkeypatch.setattr(runner, "environment", lambda tree: {"PYTHONPATH": path})
    (trees["new"] / "tfdist").rename(trees["new"] / "other")
    with pytest.raises(RuntimeError, match="new must be of .*/new. Received: .*/old/tfdist/"):
        revisions.launch(CELL, trees, 1)


def test_a_process_that_fails_is_told_with_what_it_printed(trees):
    (trees["old"] / "tfdist" / "__init__.py").write_text("raise ImportError('not this one')")
    with pytest.raises(RuntimeError, match="was not ready:\n(.|\n)*ImportError: not this one"):
        revisions.launch(CELL, trees, 1)


def test_a_row_has_medians_of_rounds_and_of_launches():
    launches = [{"old": [2.0, 2.0], "new": [1.0, 1.0]}, {"old": [2.0, 2.0], "new": [3.0, 3.0]}]
    assert revisions.row("cell", launches) == [
        *("cell", "2", "2", "1.000", "0.500–1.500", "0.500–1.500"),
    ]


@in_a_checkout
def test_what_is_unpacked_is_the_revisions_package(tmp_path):
    commit = revisions.unpack("HEAD", tmp_path / "tree")
    assert revisions.git("rev-parse", "HEAD").decode().startswith(commit)
    path = "tfdist/__init__.py"
    assert (tmp_path / "tree" / path).read_bytes() == revisions.git("show", f"HEAD:{path}")
    assert [entry.name for entry in (tmp_path / "tree").iterdir()] == ["tfdist"]


@in_a_checkout
def test_a_revision_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="rev-parse.*no-such-revision"):
        revisions.unpack("no-such-revision", tmp_path / "tree")


@pytest.mark.full
@in_a_checkout
def test_a_revision_is_as_fast_as_itself(tmp_path):
    result = tmp_path / "result.json"
    cells = ["step, 10 variables", "exchange, multi_worker, 25 gradients"]
    options = ["--old", "HEAD", "--launches", "1", "--rounds", "3", "--json", str(result)]
    printed = run("revisions", *options, "--cells", *cells)
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line[0:1] == "|"]
    assert [row[0] for row in rows[2:]] == cells
    assert all(0.1 < float(row[3]) < 10 for row in rows[2:])
    for (launch,) in json.loads(result.read_text())["launches"].values():
        assert all(len(launch[name]) == 3 and min(launch[name]) > 0 for name in ("old", "new"))
    assert "tfdist " in printed and " cores" in printed
