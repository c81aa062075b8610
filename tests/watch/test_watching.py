"""The lines of `tfdist run --watch`: in a terminal they fit, and no number in them is cut."""

import errno
import os
import pty
import re
import tempfile
import time

import pytest

from tfdist.launcher.output import Screen
from tfdist.launcher.watching import Watching, rendered
from tfdist.watch import status
from tfdist.watch.status import Status


def _lines(columns, rows=24, silent=(), count=3):
    """The lines as text, of ranks of which some are silent."""
    now = time.time()
    written = [now - 11 if n in silent else now for n in range(count)]
    ranks = [
        Status(f"rank {n}", written[n], 1, 149, 2, 150, 199.2, 0.08, 0.89, 760_000_000)
        for n in range(count)
    ]
    found = rendered(ranks, columns, rows)
    return [re.sub(r"\x1b\[[\d;]*m", "", line.decode()).rstrip() for line in found]


def test_a_table_is_as_wide_as_it_must_be():
    width = max(map(len, _lines(200)))
    assert _lines(width) == _lines(200) and _lines(width)[0].startswith("  ")
    assert _lines(width - 1)[0].startswith("rank 0: step 149/150, epoch 1/2")
    silent = _lines(200, silent=[1])
    assert silent[2].startswith("rank 1 (silent for 11 s)    1/2  149/150")
    assert _lines(max(map(len, silent)), silent=[1]) == silent


def test_no_number_is_cut():
    for columns in range(20, 100):
        lines = _lines(columns, silent=[1, 2])
        assert max(map(len, lines)) <= columns
        text = " ".join(" ".join(lines).split())
        for number in ("149/150", "1/2", "199", "8%", "89%", "0.76 GB"):
            found = re.findall(rf"(?<![\w.]){number}(?![\w.])", text)
            assert len(found) == 3, (columns, number, text)
        assert text.count("silent for 11 s") == 2


def test_a_word_that_is_longer_than_a_line_is_left_out():
    assert _lines(9, count=1)[:3] == ["rank 0:", "  step", "  149/150"]
    assert not any(re.search(r"\d{2}", line) for line in _lines(8, count=1) if "/" in line)


def test_a_narrow_terminal_has_the_step_first():
    assert _lines(20, silent=[1])[:9] == [
        "rank 0: step 149/150",
        "  epoch 1/2",
        "  199 samples/s",
        "  waits 8% for data",
        "  and 89% for others",
        "  0.76 GB",
        "rank 1: step 149/150",
        "  silent for 11 s",
        "  epoch 1/2",
    ]


def test_without_room_each_rank_has_its_first_line():
    assert _lines(20, 9) == ["rank 0: step 149/150", "rank 1: step 149/150", "rank 2: step 149/150"]
    first = [f"rank {n}: step 149/150" for n in range(3)]
    assert _lines(20, 9, count=9) == [*first, "and 6 more"]


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (0, 24), (9, 2), (1, 24)])
def test_a_terminal_that_has_no_room_shows_nothing(columns, rows):
    assert _lines(columns, rows) == []


@pytest.fixture
def watching(monkeypatch, tmp_path):
    """Makes what watches, on a new terminal of a kind; gives it, and the lines that it says."""
    ends = []

    def make(kind):
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        ends.extend(pty.openpty())
        said = []
        return Watching(Screen(ends[-1]), said.append), said

    yield make
    for end in ends:
        os.close(end)


def say(watching, **known):
    """Says something as this process, a rank."""
    status.write(watching.environment["TFDIST_WATCH"], [Status("rank 0", time.time(), **known)])


@pytest.mark.parametrize(("kind", "is_live"), [("xterm", True), ("dumb", False), ("", False)])
def test_lines_move_only_where_the_terminal_can(kind, is_live, watching):
    found, said = watching(kind)
    say(found, epoch=1, step=2)
    found.look(0.0, [os.getpid()])
    assert said == ([] if is_live else ["rank 0: epoch 1, step 2"])
    found.close()


def test_a_rank_has_a_line_at_first_when_it_knows_its_rates_and_now_and_then(watching):
    found, said = watching("dumb")
    for at in range(15):
        say(found, epoch=1, step=at, samples=None if at < 3 else 8.0)
        found.look(at, [os.getpid()])
    steps = [int(re.search(r"step (\d+)", line)[1]) for line in said]
    assert steps == [0, 3, 10]
    found.close()


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_that_nothing_is_heard_is_said_once(kind, watching):
    found, said = watching(kind)
    for at in (1000, 1059):
        found.look(at, [os.getpid()])
    assert not said
    for at in (1060, 1061, 1200):
        found.look(at, [os.getpid()])
    (line,) = said
    assert line.startswith("no rank has said anything for 60 s: --watch sees `fit` of tfdist's")
    found.close()


def test_a_rank_that_was_heard_may_be_silent_later(watching):
    found, said = watching("xterm")
    say(found, epoch=1, step=2)
    found.look(1000, [os.getpid()])
    for at in range(1001, 1200):
        found.look(at, [])
    assert not said
    found.close()


def test_a_folder_that_is_being_written_does_not_end_the_launcher(watching, monkeypatch):
    found, _ = watching("dumb")

    def fails(*args, **kwargs):
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", fails)
        found.close()
