"""A machine without ranks of its own in the group copies the journal of another machine."""

import numpy as np
import pytest

from tfdist.elastic.journal import Entry, Journal
from tfdist.launcher.journal_copy import JournalCopy

LARGE = np.arange(200_000.0)  # more than a piece


def entry(number, value=0.0):
    return Entry("train", {"loss": number}, {1: np.asarray(value)}, 2)


def written(path, entries):
    journal = Journal(str(path))
    for count, one in enumerate(entries, start=1):
        journal.keep(count, one)
    return journal


class Machines:
    """Machine 1 copies what machine 0 has, and machine 2 when 0 is gone.

    Args:
        folder: for the journals.
    """

    def __init__(self, folder):
        self.paths = [folder / str(number) for number in range(3)]
        self.asked = []
        self.copies = [JournalCopy(str(path), self._ask) for path in self.paths]
        self.now = 0.0

    def _ask(self, after, offset):
        self.asked.append((after, offset))

    def copy(self, source=0, certain=0, most=None, pieces=100):
        """Machine 1 asks and gets answers until there is nothing new."""
        for _ in range(pieces):
            self.now += 1
            self.copies[1].look(self.now)
            piece = self.copies[source].piece(*self.asked.pop(), certain, most)
            self.copies[1].take(source, piece, self.now)
            if not piece["data"] and self.now > 1:
                break

    def read(self, is_last=False):
        journal, found = Journal(str(self.paths[1])), []
        while (one := journal.read(is_last=is_last)) is not None:
            found.append(one.result["loss"])
        return found


@pytest.fixture
def machines(tmp_path):
    return Machines(tmp_path)


def test_what_is_certain_is_copied(machines):
    written(machines.paths[0], [entry(0), entry(1), entry(2)])
    machines.copy()
    assert machines.read(is_last=True) == [0, 1], "2 may be replaced yet"
    machines.copy(certain=3)
    assert machines.read(is_last=True) == [0, 1, 2]


def test_nothing_is_copied_after_the_operation_at_which_a_rank_joins(machines):
    written(machines.paths[0], [entry(number) for number in range(5)])
    machines.copy(certain=2, most=2)
    assert machines.read(is_last=True) == [0, 1]
    machines.copy(certain=0, most=0)
    assert machines.read(is_last=True) == [0, 1]


def test_an_entry_may_be_larger_than_a_message(machines):
    written(machines.paths[0], [entry(0, LARGE), entry(1), entry(2)])
    machines.copy()
    assert machines.read(is_last=True) == [0, 1]
    read = Journal(str(machines.paths[1])).read(is_last=False)
    assert (read.values[1] == LARGE).all()


def test_another_machine_goes_on_in_the_middle_of_an_entry(machines):
    entries = [entry(0), entry(1, LARGE), entry(2), entry(3)]
    written(machines.paths[0], entries)
    written(machines.paths[2], entries)
    machines.copy(pieces=3)
    assert machines.copies[1]._extra, "in the middle"
    machines.copy(source=2)
    assert machines.read(is_last=True) == [0, 1, 2]


def test_an_answer_that_comes_twice_is_taken_once(machines):
    written(machines.paths[0], [entry(number) for number in range(4)])
    machines.copy()
    late = machines.copies[0].piece(0, 0, 0, None)
    assert late["data"]
    machines.copies[1].take(0, late, 0.0)
    assert machines.read(is_last=True) == [0, 1, 2]


def test_what_a_lost_rank_of_this_machine_wrote_last_is_dropped(machines):
    written(machines.paths[0], [entry(number) for number in range(5)])
    written(machines.paths[1], [entry(0), entry(1), entry("never completed by all")])
    machines.copies[1].is_written(0.0)
    machines.copy()
    assert machines.read(is_last=True) == [0, 1, 2, 3]


def test_a_rank_that_has_joined_writes_on(machines):
    written(machines.paths[0], [entry(0), entry(1)])
    machines.copy(certain=2, most=2)
    joined = Journal(str(machines.paths[1]))
    joined.keep(2, None)
    joined.keep(3, entry(2))
    assert not joined.why_ended()
    assert machines.read(is_last=True) == [0, 1, 2]


def test_that_nobody_can_follow_any_more_is_told(machines):
    journal = written(machines.paths[0], [entry(0), entry(1)])
    journal.end("a reason")
    machines.copy()
    assert machines.read() == []
    assert Journal(str(machines.paths[1])).why_ended() == "a reason"


def test_one_that_gets_no_answer_asks_again(machines):
    machines.copies[1].look(1.0)
    machines.copies[1].look(2.0)
    assert len(machines.asked) == 1
    machines.copies[1].look(100.0)
    assert len(machines.asked) == 2


def test_ranks_of_one_machine_may_be_lost_twice(machines):
    source = written(machines.paths[0], [entry(0), entry(1), entry(2)])
    machines.copy(certain=3, most=3)
    joined = Journal(str(machines.paths[1]))
    joined.keep(3, None)
    for number in range(3, 6):
        joined.keep(number + 1, entry(number))
        source.keep(number + 1, entry(number))
    joined.keep(7, entry("never completed by all"))
    source.keep(7, entry(6))
    source.keep(8, entry(7))
    machines.copy()
    assert machines.read(is_last=True) == list(range(7))


def test_a_copy_that_cannot_be_written_ends_nothing_else(machines):
    written(machines.paths[0], [entry(0), entry(1), entry(2)])
    machines.paths[1].unlink()
    machines.paths[1].mkdir()
    machines.copy(pieces=1)
    assert "a result cannot be kept" in Journal(str(machines.paths[1])).why_ended()
    machines.copies[1].look(1000.0)
    assert not machines.asked, "nobody can follow"


def test_a_journal_that_cannot_be_read_is_said(machines):
    machines.paths[0].unlink()
    assert "a result cannot be read" in machines.copies[0].piece(0, 0, 0, None)["why"]
