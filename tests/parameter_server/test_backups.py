"""When an idle worker computes a part that another one has not finished."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.parameter_server.backups_scenarios import trained
from tfdist.compression import TopK
from tfdist.parameter_server.data import parts_source
from tfdist.parameter_server.data.backups import Backups
from tfdist.parameter_server.data.parts_source import PartsSource
from tfdist.staleness import Synchronous

pytestmark = pytest.mark.xdist_group("parameter_server")


@pytest.fixture
def known(clock):
    """Worker 0 takes 1 second for a part, worker 1 takes 5; both have begun with one each."""
    found = Backups()
    for worker, seconds in ((0, 1.0), (1, 5.0)):
        found.begin(worker, worker)
        clock.now += seconds
        found.end(worker)
    found.begin_batch()
    found.begin(0, 0)
    found.begin(1, 1)
    return found


def test_a_part_is_computed_too_by_who_will_be_faster(known, clock):
    clock.now += 1
    known.end(0)
    assert known.choose(0, {1}) == (1, None)


def test_it_is_not_by_who_would_come_too_late(known, clock):
    clock.now += 4
    known.end(0)
    part, seconds = known.choose(0, {1})
    assert part is None
    assert seconds == pytest.approx(1.5 * 5 - 4)


def test_who_is_late_gets_help(known, clock):
    clock.now += 0.9
    assert known.choose(1, {0}) == (None, pytest.approx(0.6))
    clock.now += 0.7
    assert known.choose(1, {0}) == (0, None)


def test_a_part_is_computed_twice_at_most(known, clock):
    clock.now += 1
    known.end(0)
    known.begin(0, 1)
    known.end(0)
    assert known.choose(0, {1}) == (None, None)


def test_of_a_worker_that_is_lost_nothing_is_known(known, clock):
    clock.now += 1
    known.end(0)
    known.leave(1)
    assert known.choose(0, {1}) == (None, None)
    clock.now += 9
    assert known.choose(1, {1})[0] is None, "what worker 1 takes is not known any more"


@pytest.mark.parametrize("first", ["another worker begins", "the worker is noted as lost"])
def test_a_part_that_a_lost_worker_had_gets_help_again(known, clock, first):
    clock.now += 1
    known.end(0)
    if first == "another worker begins":
        known.begin(2, 1)
    known.leave(1)
    if first == "the worker is noted as lost":
        known.begin(2, 1)
    assert known.choose(0, {1})[0] is None
    clock.now += 9
    assert known.choose(0, {1}) == (1, None)


@pytest.fixture
def parts(monkeypatch, clock):
    """Two global batches of 4 samples in 2 parts, of which worker 1 is slow with the first."""
    monkeypatch.setattr(parts_source, "CHIEF", "/device:CPU:0")
    batches = iter(tf.data.Dataset.range(12).batch(4))
    source = PartsSource(batches, 2, backup=True).open(2)
    first = [source.take(0), source.take(1)]
    clock.now += 1
    assert all(source.accept(part, worker) for worker, part in enumerate(first))
    source.advance()
    return source


def test_the_first_result_counts(parts, clock):
    own, slow = parts.take(0), parts.take(1)
    clock.now += 1
    assert parts.accept(own, 0)
    clock.now += 1
    copy = parts.take(0)
    assert (copy.position, copy.index) == (slow.position, slow.index)
    assert np.array_equal(copy.data, slow.data)
    assert parts.accept(copy, 0)
    assert not parts.accept(slow, 1)
    parts.advance()
    assert not parts.accept(slow, 1), "it is of the batch before"
    assert parts.take(0) is None, "two batches were wanted"


def test_a_copy_that_is_lost_is_not_given_to_others(parts, clock):
    own, slow = parts.take(0), parts.take(1)
    parts.accept(own, 0)
    clock.now += 3
    copy = parts.take(0)
    parts.give_back(copy)
    parts.accept(slow, 1)
    parts.advance()
    assert parts.take(0) is None


@pytest.mark.parametrize("first", ["is used", "comes back"])
def test_a_part_that_was_used_does_not_come_back(parts, clock, first):
    own, slow = parts.take(0), parts.take(1)
    parts.accept(own, 0)
    clock.now += 3
    copy = parts.take(0)
    if first == "comes back":
        parts.give_back(slow)
    parts.accept(copy, 0)
    if first == "is used":
        parts.give_back(slow)
    parts.advance()
    assert parts.take(0) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts_per_worker": 0}, "`parts_per_worker` must be an integer"),
        ({"backup": 1}, "`backup` must be True or False. Received: backup=1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Synchronous(**options)


@pytest.mark.parametrize("policy", [Synchronous(2), Synchronous(backup=True), Synchronous(drop=1)])
def test_compression_is_refused(policy):
    with pytest.raises(ValueError, match="Leave out `parts_per_worker`, `backup` and `drop`"):
        tfdist.ParameterServerStrategy(staleness=policy, compression=TopK(0.1))


@pytest.mark.scenario("backups")
def test_whoever_computes_a_part_the_result_is_that_of_one_device(found):
    expected = trained(None)
    for name, result in found.items():
        for ours, theirs in zip(result["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6, err_msg=name)
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5), name
        assert result["updates"] == result["iterations"] == expected["iterations"], name


@pytest.mark.scenario("backups")
def test_the_slow_worker_is_helped(found):
    assert found["even"]["redundant"] == found["parts"]["redundant"] == [0, 0]
    for name in ("backup", "parts and backup"):
        assert found[name]["redundant"][1] >= 1, name
    # Of 14 batches with 4 parts each, it computes one part of each, not two.
    assert found["parts"]["slow parts"] < 20 < found["parts"]["all parts"] == 56
