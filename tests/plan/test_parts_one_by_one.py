"""Workers that finish one after the other in a loop of their own do what single events do."""

import numpy as np
import pytest

from tfdist.plan.simulation.compute_times import ComputeTimes
from tfdist.plan.simulation.parts import Parts

KINDS = {
    "random": lambda random, shape: random.random(shape),
    "varying": lambda random, shape: drawn(random, shape, spread=0.4),
    "stalls": lambda random, shape: drawn(
        random, shape, spread=0.3, stall_share=0.1, stall_factor=8.0
    ),
    "slow workers": lambda random, shape: (
        random.random(shape) + 4 * (random.random(shape[1]) < 0.3)
    ),
    # Many finish at the same moment, and some as soon as they begin.
    "ties": lambda random, shape: random.integers(0, 4, shape).astype(float),
}


def drawn(random, shape, **options):
    return ComputeTimes(shape[1], **options).draw(random, shape[0])


class OneByOne(Parts):
    """Plays one event after the other."""

    def _finish_many(self):
        self._look()


@pytest.mark.parametrize("exchange", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_many_that_finish_are_the_same_as_one_after_the_other(kind, exchange):
    random = np.random.default_rng(0)
    in_vain = 0
    for workers in range(1, 13):
        for each, backup in ((1, True), (2, True), (3, True), (1, False), (2, False)):
            times = KINDS[kind](random, (int(random.integers(1, 12)), workers))
            run = Parts(times, workers * each, backup, exchange).run()
            plain = OneByOne(times, workers * each, backup, exchange).run()
            assert run.times.tobytes() == plain.times.tobytes()
            assert run.dropped == plain.dropped and (backup or not run.dropped)
            in_vain += run.dropped
    assert in_vain > 20


def test_few_events_of_many_are_played_one_by_one(monkeypatch):
    played = []
    one = Parts._next_event
    monkeypatch.setattr(Parts, "_next_event", lambda parts: played.append(1) or one(parts))
    options = {"spread": 0.2, "stall_share": 0.01, "stall_factor": 5.0}
    times = drawn(np.random.default_rng(0), (20, 500), **options)
    run = Parts(times, 500, True).run()
    few, _ = len(played), played.clear()
    plain = OneByOne(times, 500, True).run()
    assert run.times.tobytes() == plain.times.tobytes() and run.dropped == plain.dropped > 300
    assert few < len(played) / 4
