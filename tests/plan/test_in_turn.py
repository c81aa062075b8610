"""What `Bounded(n, "wait")` does is found without a question for each gradient, and is the same."""

import numpy as np
import pytest

from tests.plan.plain_events import played
from tests.plan.test_simulation import Both, Free, Slack, Unusual, Waits, drawn
from tfdist.plan.simulation.events import Events
from tfdist.plan.simulation.in_turn import bound_that_waits, in_turn
from tfdist.plan.simulation.simulate import simulate

KINDS = {
    "random": lambda random, shape: random.random(shape),
    "stalls": lambda random, shape: drawn(
        shape[0], random.integers(100), workers=shape[1], stall_share=0.1, stall_factor=10.0
    ),
    "slow workers": lambda random, shape: (
        random.random(shape) + 4 * (random.random(shape[1]) < 0.3)
    ),
    "equal": lambda random, shape: np.ones(shape),
    # Many gradients come at the same moment, and some as soon as they begin.
    "ties": lambda random, shape: random.integers(0, 4, shape).astype(float),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", [0.0, 0.1, 3.0])
def test_gradients_in_turn_are_those_of_one_event_after_the_other(kind, update):
    random = np.random.default_rng(0)
    used = 0
    for workers in range(1, 9):
        for bound in range(workers):
            times = KINDS[kind](random, (int(random.integers(1, 12)), workers))
            run, plain = in_turn(times, bound, update), played(times, Waits(bound), update)
            assert run.times.tobytes() == plain.times.tobytes()
            assert run.staleness.tolist() == plain.staleness.tolist()
            assert run.dropped == plain.dropped == 0
            used += len(run.times)
    assert used > 500


@pytest.mark.parametrize("bound", [0, 8, 39])
def test_many_workers_in_turn(bound):
    times = drawn(workers=40, stall_share=0.05, stall_factor=6.0)
    run, plain = in_turn(times, bound), Events(times, Waits(bound)).run()
    assert len(run.times) > 1000 and run.times.tobytes() == plain.times.tobytes()
    assert run.staleness.tolist() == plain.staleness.tolist()


class Drops(Waits):
    def accepts(self, staleness):
        return staleness < self.bound


class Starts(Slack):
    """Holds nothing back, but limits what is under way."""

    def may_start(self, ahead, under_way):
        return under_way <= self.slack


class OneLess(Waits):
    """Holds updates back for a lower bound than its own."""

    def may_update(self, others):
        return all(other < self.bound for other in others)


def test_only_what_bounded_does_is_in_turn():
    assert [bound_that_waits(Waits(n), 6, 10) for n in (0, 3, 5, 6, 40)] == [0, 3, 5, None, None]
    others = [Free(), Slack(2), Unusual(), Both(Slack(1), Waits(3)), Drops(3), Starts(3)]
    others += [OneLess(3), Waits(-1)]
    assert [bound_that_waits(policy, 6, 10) for policy in others] == [None] * len(others)
    assert bound_that_waits(Both(Free(), Waits(3)), 6, 10) == 3


def test_simulate_asks_few_questions_where_updates_wait(monkeypatch):
    monkeypatch.setattr(Events, "run", None)  # not used
    policy = Waits(3)
    run = simulate(drawn(), policy, exchange=0.5, update=0.1)
    assert len(run.times) > 100 and run.staleness.max() == 3 and policy.asked < 20
    assert run.times.tobytes() == in_turn(drawn() + 0.5, 3, 0.1).times.tobytes()
