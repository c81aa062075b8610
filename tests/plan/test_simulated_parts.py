"""Synchronous steps in parts: against hand-made cases, and the objects of a live chief."""

import numpy as np
import pytest

from benchmarks import simulation
from tests.docs import sources
from tests.plan.live_parts import LiveParts
from tfdist.parameter_server.data import durations
from tfdist.plan.simulation import parts, runs
from tfdist.plan.simulation.compute_times import ComputeTimes
from tfdist.plan.simulation.parts import Parts
from tfdist.plan.simulation.simulate import simulate
from tfdist.staleness import Policies, Synchronous

WORKERS = {
    "one slower for good": {"slower": (5.0,)},
    "varying": {"spread": 0.4},
    "stalls": {"spread": 0.3, "stall_share": 0.1, "stall_factor": 8.0},
    "all": {"spread": 0.5, "slower": (3.0,), "stall_share": 0.05, "stall_factor": 10.0},
}


def drawn(workers, steps=10, seed=0, **options):
    return ComputeTimes(workers, **options).draw(np.random.default_rng(seed), steps)


@pytest.mark.parametrize("exchange", [0.0, 0.25])
@pytest.mark.parametrize(("workers", "each"), [(2, 1), (5, 2), (8, 1), (3, 3), (20, 1)])
@pytest.mark.parametrize("kind", WORKERS)
def test_who_helps_whom_is_as_the_objects_of_a_live_chief_choose(
    kind, workers, each, exchange, monkeypatch
):
    in_vain = 0
    for seed in range(3):
        times = drawn(workers, seed=seed, **WORKERS[kind]) / each
        # Sums of such numbers have no rounding, in whatever order.
        times = np.maximum(np.round(times * 64), 1) / 64
        live = LiveParts(times, workers * each, exchange, monkeypatch)
        ends = live.run()
        run = Parts(times, workers * each, True, exchange).run()
        assert run.times.tolist() == np.repeat(ends, workers).tolist()
        assert run.dropped == live.in_vain
        in_vain += run.dropped
    assert in_vain > 0 or kind == "varying"


@pytest.mark.parametrize("exchange", [0.0, 1.0])
def test_who_helps_whom_where_much_happens_at_once_is_as_in_a_live_chief(exchange, monkeypatch):
    random = np.random.default_rng(0)
    in_vain = 0
    for workers in range(1, 9):
        for each in (1, 1, 2, 3):
            times = random.integers(1, 5, (int(random.integers(2, 12)), workers)).astype(float)
            live = LiveParts(times, workers * each, exchange, monkeypatch)
            ends = live.run()
            run = Parts(times, workers * each, True, exchange).run()
            assert run.times.tolist() == np.repeat(ends, workers).tolist()
            assert run.dropped == live.in_vain
            in_vain += run.dropped
    assert in_vain > 50


def test_when_a_worker_is_late_is_as_in_a_live_chief():
    assert (parts.LATE, parts.MARGIN) == (durations._LATE, durations._MARGIN)


def test_without_backups_one_part_for_each_worker_is_a_synchronous_step():
    times = drawn(6, **WORKERS["all"])
    run = Parts(times, 6, False, 0.5).run()
    np.testing.assert_allclose(run.times, runs.synchronous(times, 0.5).times)
    assert run.dropped == 0 and not run.staleness.any()


def test_a_slow_worker_takes_fewer_parts():
    times = np.tile([1.0, 1.0, 5.0], (3, 1))
    # The slow worker computes one of six parts, and the others the rest meanwhile.
    assert Parts(times, 6, False, 0.5).run().times[::3].tolist() == [5.5, 11.0, 16.5]


def test_an_idle_worker_computes_what_a_slow_one_has_begun():
    run = Parts(np.tile([1.0, 1.0, 5.0], (5, 1)), 3, True, 0.25).run()
    # At first nobody knows that the worker is slow: it is late after half as much time again. It is
    # busy in vain until 5 and until 10; the parts that it begins then get help at once.
    assert run.times[::3].tolist() == [2.75, 5.0, 7.25, 9.5, 11.75]
    assert run.dropped == 3 and run.times.shape == (15,)


def test_help_is_not_worth_it_where_the_other_one_will_be_earlier():
    times = np.array([[4.0, 5.0], [4.0, 5.0], [4.0, 5.0]])
    assert Parts(times, 2, True).run().times[::2].tolist() == [5.0, 10.0, 15.0]


def test_policies_in_parts():
    times = drawn(6, steps=80, **WORKERS["all"])
    for policy, count, backup in (
        (Synchronous(backup=True), 6, True),
        (Synchronous(parts_per_worker=2), 12, False),
        (Synchronous(2, backup=True), 12, True),
    ):
        for given in (policy, Policies.of(policy)):
            run = simulate(times, given, exchange=0.5, part=0.25)
            mine = Parts(times / (count / 6) + 0.25, count, backup, 0.5).run()
            assert run.times.tolist() == mine.times.tolist() and run.dropped == mine.dropped
    one = simulate(times, Synchronous(), exchange=0.5, part=0.25)
    assert one.times[-1] == pytest.approx(times.max(axis=1).sum() + 80 * 0.75)


def test_steps_that_stall_are_shortest_with_parts_and_backups():
    times = drawn(8, steps=600, **WORKERS["stalls"])
    seconds = [
        simulate(times, policy).times[-1]
        for policy in (
            Synchronous(),
            Synchronous(parts_per_worker=2),
            Synchronous(backup=True),
            Synchronous(2, backup=True),
        )
    ]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 2.5 * seconds[3]


def test_a_thousand_workers_have_few_parts_in_vain():
    times = drawn(1000, steps=10, spread=0.2, stall_share=0.01, stall_factor=5.0)
    run = simulate(times, Synchronous(backup=True))
    assert run.times[-1] < 0.7 * simulate(times, Synchronous()).times[-1]
    assert 0 < run.dropped < 0.1 * times.size


def test_steps_in_parts_are_as_long_as_they_were_measured():
    rows = simulation.in_parts()
    assert [row.policy for row in rows] == list(simulation.IN_PARTS)
    for row in rows:
        assert row.simulated == pytest.approx(row.step, rel=0.1)
        assert row.simulated_in_vain == pytest.approx(row.in_vain, abs=0.1)
    text = (sources.DOCS / "scaling.md").read_text()
    assert f"<!-- simulated-parts:begin -->\n{simulation.compared_in_parts()}\n" in text
