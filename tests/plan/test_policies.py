"""The simulator asks the policies that users give to a parameter server."""

import numpy as np
import pytest

from benchmarks import simulation
from tfdist.plan.simulation.compute_times import ComputeTimes
from tfdist.plan.simulation.events import Events
from tfdist.plan.simulation.simulate import simulate
from tfdist.staleness import SSP, Bounded, InverseLR, Policies, Synchronous


def drawn(seed=0):
    return ComputeTimes(6, spread=0.4, slower=(4.0,)).draw(np.random.default_rng(seed), 80)


@pytest.mark.parametrize(
    "policy",
    [
        *(InverseLR(), SSP(0), SSP(3), Policies.of([SSP(2), InverseLR()]), Policies()),
        *(Bounded(2), Bounded(4), Policies.of([SSP(2), Bounded(3)])),
    ],
    ids=repr,
)
def test_policies_that_ask_for_the_lead_are_simulated_at_once_and_alike(policy, monkeypatch):
    slow = Events(drawn(), policy).run()
    monkeypatch.setattr(Events, "run", None)  # not used
    fast = simulate(drawn(), policy)
    count = min(len(fast.times), len(slow.times))
    assert count > 50
    np.testing.assert_allclose(fast.times[:count], slow.times[:count])
    np.testing.assert_array_equal(fast.staleness[:count], slow.staleness[:count])


@pytest.mark.parametrize("bound", [0, 2, 5])
def test_a_bound_that_waits_is_kept_and_nothing_is_dropped(bound):
    run = simulate(drawn(), Bounded(bound, "wait"))
    assert len(run.times) > 50 and run.dropped == 0
    assert run.staleness.max() <= bound


@pytest.mark.parametrize("bound", [0, 2, 5])
def test_a_bound_that_drops_is_kept_and_nobody_waits(bound):
    run = simulate(drawn(), Bounded(bound))
    assert run.staleness.max() <= bound and run.dropped > 0
    free = simulate(drawn(), Policies())
    assert len(run.times) + run.dropped == len(free.times)


def test_synchronous_policies():
    times = drawn()
    assert simulate(times, Synchronous()).times[-1] == pytest.approx(times.max(axis=1).sum())
    second = np.sort(times, axis=1)[:, -2].sum()
    assert simulate(times, Synchronous(drop=1)).times[-1] == pytest.approx(second)
    policy = Synchronous(parts_per_worker=2, drop=1)
    for given in (policy, Policies.of(policy)):
        with pytest.raises(ValueError, match="not simulated: .* Received: policy=.*Synchronous"):
            simulate(times, given)


NAMED = [*simulation.POLICIES.values(), Policies.of([Bounded(20), InverseLR()])]


@pytest.mark.parametrize("policy", NAMED, ids=repr)
def test_ten_thousand_workers_with_each_policy_that_the_docs_name(policy):
    times = ComputeTimes(10_000, spread=0.2, stall_share=0.01, stall_factor=5.0).draw(
        np.random.default_rng(0), 20
    )
    run = simulate(times, policy)
    assert len(run.times) + run.dropped > 10_000


def test_exchanges_and_updates_take_time():
    times = np.ones((10, 2))
    assert simulate(times, Synchronous(), exchange=0.5).times[-1] == pytest.approx(15)
    assert simulate(times, Policies(), exchange=0.5).times[-1] == pytest.approx(15)
    assert simulate(times, Policies(), update=2.0).times[-1] > 35
