"""Every test has one tier, and shards together are the whole."""

from __future__ import annotations

import collections
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import selection, shards, tiers


def test_every_file_of_tests_has_a_tier():
    files = list(tiers.ROOT.rglob("test_*.py"))
    assert len(files) > 100
    for path in files:
        assert set(tiers.of_path(path)) <= set(tiers.TIERS)


def test_no_tier_is_given_to_what_is_not_there():
    assert tiers.unused_paths() == []


def test_a_file_without_a_tier_is_an_error():
    with pytest.raises(LookupError, match="names no tier for tests/equivalence/test_new.py: add"):
        tiers.of_path(tiers.ROOT / "equivalence" / "test_new.py")


def item(file, *marks, **parameters):
    """What pytest hands over of a test."""
    found = types.SimpleNamespace(path=tiers.ROOT / file, nodeid=f"tests/{file}::test")
    found.iter_markers = lambda: [mark.mark for mark in marks]
    found.get_closest_marker = lambda name: next(
        (mark.mark for mark in marks if mark.mark.name == name), None
    )
    if parameters:
        found.callspec = types.SimpleNamespace(params=parameters)
    return found


def test_a_mark_chooses_among_the_tiers_of_the_file():
    mixed, only_graph = "equivalence/test_equivalence.py", "step/test_wire.py"
    assert tiers.of_item(item(mixed)) == "graph"
    assert tiers.of_item(item(mixed, pytest.mark.full, pytest.mark.job)) == "job"
    assert tiers.of_item(item(only_graph)) == "graph"
    for file, marks in (
        (mixed, [pytest.mark.pure]),
        (mixed, [pytest.mark.job, pytest.mark.graph]),
        (only_graph, [pytest.mark.job]),
    ):
        with pytest.raises(LookupError, match="allows one tier of .* Received: "):
            tiers.of_item(item(file, *marks))


def test_a_pure_file_that_imports_horovod_is_named(monkeypatch):
    option = types.SimpleNamespace(tier=("pure",))
    collector = types.SimpleNamespace(nodeid="tests/test_new.py")
    collector.config = types.SimpleNamespace(option=option)
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    around = selection.pytest_make_collect_report(collector)
    next(around)
    with monkeypatch.context() as patch, pytest.raises(StopIteration) as ended:
        patch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
        around.send(types.SimpleNamespace(outcome="passed", longrepr=None))
    report = ended.value.value
    assert report.outcome == "failed"
    assert report.longrepr.startswith("tests/test_new.py imports ['horovod']: ")


def test_tests_that_share_something_are_in_one_unit():
    group = pytest.mark.xdist_group("multi_process-horovod-2")
    feature = types.SimpleNamespace(name="Adam")
    units = [
        shards.unit_of(one)
        for one in (
            item("multi_process/test_data.py", group),
            item("multi_process/test_files.py", pytest.mark.xdist_group(name=group.args[0])),
            item("equivalence/test_equivalence.py", column=1, feature=feature),
            item("equivalence/test_equivalence.py", column=2, feature=feature),
            item("step/test_wire.py", pytest.mark.full),
            item("step/test_wire.py", number=3),
        )
    ]
    assert units[::2] == units[1::2]
    assert len(set(units)) == 3


_TESTS = st.lists(
    st.tuples(st.integers(0, 30).map(str), st.sampled_from(sorted(shards.COST.values()))),
    min_size=1,
)


@given(_TESTS, st.integers(1, 12))
def test_each_test_is_in_one_shard_beside_its_neighbours(tests, count):
    units, costs = zip(*tests)
    places = shards.places(units, costs, count)
    assert set(places) <= set(range(count))
    assert len(set(zip(units, places))) == len(set(units))


def test_shards_are_about_equally_long():
    units = [f"{number % 300}" for number in range(3000)]
    found = collections.Counter(shards.places(units, [1.0] * 3000, 8))
    assert sorted(found) == list(range(8))
    assert max(found.values()) - min(found.values()) <= 10


def test_a_new_test_moves_few_others():
    units = [f"{number % 300}" for number in range(3000)]
    before = shards.places(units, [1.0] * 3000, 8)
    after = shards.places(["new", *units], [1.0] * 3001, 8)[1:]
    assert sum(old != new for old, new in zip(before, after)) <= 8 * 10


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "2", "2/", "-1/3", "1/3x", "a/b", ""])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ValueError, match=f"1 <= i <= n, .*Received: {text}$"):
        shards.parse(text)


def test_a_shard_is_one_of_several():
    assert shards.parse("2/6") == (2, 6)
