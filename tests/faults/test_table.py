"""The tables of faults: what an interrupted run has found is kept, what failed is tried again."""

import subprocess
import sys

import pytest

from tests.faults import table
from tests.faults.rows import Row

HEAD = ["engine", "what happens", "what the job does", "seconds", "max Δw"]


class Run:
    """A run of the table over faults that come to what a test says.

    Attributes:
        outcomes: what each fault comes to, by its name: cells, or an exception.
        ran: the names of the faults that happened.
    """

    def __init__(self, page, monkeypatch):
        self.page = page
        page.write_text("# Page\n<!-- faults:begin -->\n<!-- faults:end -->\nThe end\n")
        self.outcomes = {}
        self.ran = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(table, "KINDS", {"one": table.Kind(self._rows, page, HEAD, "Text.")})

    def _rows(self, kind):
        def inject(name, folder):
            self.ran.append(name)
            outcome = self.outcomes[name]
            if callable(outcome):
                return outcome(folder)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        for name in self.outcomes:
            yield Row(kind, name, lambda folder, name=name: inject(name, folder))

    def __call__(self, *options):
        """Runs; returns the status, and the names of the faults that happened."""
        self.ran.clear()
        self._monkeypatch.setattr(sys, "argv", ["table", "--update", *options])
        return table.main(), [*self.ran]

    def result(self, name):
        """What the page says of a fault."""
        return table.kept(self.page)["one", name][2]


@pytest.fixture
def run(tmp_path, monkeypatch):
    return Run(tmp_path / "page.md", monkeypatch)


def test_an_interrupted_run_keeps_its_rows_and_the_next_one_goes_on(run):
    good = ["goes on", "1.0", "exact"]
    run.outcomes = {"a": good, "b": KeyboardInterrupt(), "c": good}
    with pytest.raises(KeyboardInterrupt):
        run()
    assert run.result("a") == "goes on"
    run.outcomes["b"] = good
    assert run() == (0, ["b", "c"])
    assert [name for _, name in table.kept(run.page)] == ["a", "b", "c"]
    assert run("--fresh", "--only", "b") == (0, ["b"])
    text = run.page.read_text()
    assert text.startswith("# Page\n") and text.endswith("The end\n")
    assert "Text." in text


def test_what_has_failed_is_said_and_tried_again(run):
    run.outcomes = {
        "wrong": AssertionError("not | equal\nmore"),
        "hangs": subprocess.TimeoutExpired("job", 5),
        "good": ["goes on", "1.0", "exact"],
    }
    assert run() == (1, ["wrong", "hangs", "good"])
    assert run.result("wrong") == "failed: not   equal"
    assert run.result("hangs").startswith("failed: it has not ended after 0 s")
    run.outcomes["wrong"] = run.outcomes["good"]
    assert run() == (1, ["wrong", "hangs"])
    assert run.result("wrong") == "goes on"


def test_a_process_that_is_left_behind_is_a_failure(run):
    left = []

    def leave(folder):
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        left.append(subprocess.Popen(command, cwd=folder))
        return ["goes on", "1.0", "exact"]

    run.outcomes = {"leaves": leave}
    try:
        assert run()[0] == 1
    finally:
        left[0].kill()
        left[0].wait()
    assert run.result("leaves") == "failed: processes that have not ended: 1"


def test_rows_of_faults_that_there_are_no_more_go(run):
    run.outcomes = {name: ["goes on", "1.0", "exact"] for name in "ab"}
    run()
    del run.outcomes["a"]
    run("--fresh")
    assert [name for _, name in table.kept(run.page)] == ["b"]


def test_the_pages_have_rows_for_known_faults_only():
    for page in {kind.page for kind in table.KINDS.values()}:
        names = {
            (row.kind, row.name)
            for name, kind in table.KINDS.items()
            if kind.page == page
            for row in kind.rows(name)
        }
        assert names >= set(table.kept(page)) != set()
