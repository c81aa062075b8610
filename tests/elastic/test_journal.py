"""The file of what the ranks of an elastic job have done: what is certain, and who writes on."""

import resource

import pytest

from tfdist.elastic.journal import Entry, Journal


def entry(result):
    return Entry("sum", result, {}, 2)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "journal")


def written(path, *results):
    journal = Journal(path)
    for count, result in enumerate(results, 1):
        journal.keep(count, entry(result))
    return journal


def read(path):
    """All entries, as a rank reads that the others wait for."""
    journal, found = Journal(path), []
    while (one := journal.read(is_last=True)) is not None:
        found.append(one.result)
    return found


def test_an_entry_is_certain_when_the_next_one_is_there(path):
    reader = Journal(path)
    assert reader.read(is_last=False) is None
    journal = written(path, "a")
    assert reader.read(is_last=False) is None
    journal.keep(2, entry("b"))
    assert reader.read(is_last=False).result == "a"
    assert reader.read(is_last=False) is None
    assert reader.read(is_last=True).result == "b"


def test_the_last_entry_is_written_once(path):
    journal = written(path, "a", "b")
    journal.keep(2, entry("other"))
    assert journal.has(2)
    assert read(path) == ["a", "b"]


def test_the_next_rank_0_writes_its_own_last_entry(path):
    written(path, "a", "of the rank that is lost")
    journal = Journal(path)
    assert not journal.has(2)
    journal.keep(2, entry("of the others"))
    assert read(path) == ["a", "of the others"]


def test_what_only_the_lost_rank_has_completed_is_dropped(path):
    written(path, "a", "b", "c")
    journal = Journal(path)
    journal.keep(2, entry("b again"))  # it was certain: others may have read it
    assert read(path) == ["a", "b"]
    journal.keep(3, entry("d"))
    assert read(path) == ["a", "b", "d"]


def test_a_rank_that_has_joined_writes_on(path):
    written(path, "a", "b")
    journal = Journal(path)
    journal.keep(2, None)
    journal.keep(3, entry("c"))
    assert journal.has(3)
    assert read(path) == ["a", "b", "c"]


def test_half_an_entry_is_none(path):
    written(path, "a", "b")
    with open(path, "r+b") as file:
        file.truncate(file.seek(0, 2) - 1)
    assert read(path) == ["a"]
    Journal(path).keep(2, entry("b"))
    assert read(path) == ["a", "b"]


def test_a_gap_ends_the_journal(path):
    written(path, "a")
    Journal(path).keep(3, entry("c"))
    assert "before it had written down" in Journal(path).why_ended()


def test_what_cannot_be_kept_ends_the_journal_and_nothing_else(path):
    journal = written(path, "a", lambda: None)
    assert journal.has(2)
    assert "a result cannot be kept" in Journal(path).why_ended()
    assert read(path) == ["a"]


def test_a_full_disk_ends_the_journal_and_nothing_else(path):
    journal = written(path, "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        journal.keep(2, entry("b" * 2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert journal.has(2)
    assert "File too large" in journal.why_ended()
    assert read(path) == ["a"]
