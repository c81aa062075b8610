"""What workers note of their steps: by which clock, and to which step it belongs."""

import types

import numpy as np
import pytest

from tfdist.engines.clocks import Clock
from tfdist.parameter_server import noted
from tfdist.parameter_server.noted import Noted, clock_there
from tfdist.parameter_server.spans import ServerSpans
from tfdist.parameter_server.worker.points import OF_SENDING, OF_STEP, OF_UPDATE

_US = 1e6  # microseconds in a second


def test_times_are_by_the_clock_of_the_chief():
    own = Noted(Clock(2.0, 1e-4), Clock(-3.0, 1e-4))
    row = [12.5 + place for place, _ in enumerate(OF_UPDATE)]
    found = own.times(OF_UPDATE, row)
    assert [round(found[name] / 1e9, 6) for name in OF_UPDATE] == [
        *(10.5, 11.5, 12.5, 13.5),
        *(19.5, 20.5),  # on the server
        16.5,
    ]


def vector(*times):
    return types.SimpleNamespace(numpy=lambda: np.array(times))


def test_each_batch_of_a_work_item_is_a_step():
    item = Noted(Clock(0.0, 0.0))
    item.begin()
    asked = item.steps[0]["asked"] / 1e9
    item.reached(OF_STEP, vector(asked + 1, asked + 2, asked + 3))
    item.reached(OF_STEP, vector(asked + 4, asked + 5, asked + 6))
    item.reached(OF_SENDING, vector(asked + 7, asked + 8))
    spans = ServerSpans(0, 9, workers=1)
    for place, times in enumerate(item.steps):
        spans.add_step(place, 0, times)
    found = [event for event in spans.events(9) if event["ph"] == "X"]
    assert [
        (event["args"]["step"], event["name"], round(event["dur"] / _US)) for event in found
    ] == [
        *[(0, "step", 3), (0, "pull", 1), (0, "wait for data", 1), (0, "compute", 1)],
        *[(1, "step", 5), (1, "pull", 1), (1, "wait for data", 1), (1, "compute", 1)],
        *[(1, "encode", 1), (1, "push", 1)],
    ]


@pytest.mark.parametrize(("delay", "asked"), [(0.0, 20), (0.005, 400)])
def test_a_clock_is_compared_until_the_error_is_small(delay, asked, monkeypatch):
    """The other clock is 5 s ahead; each way takes some time, which here is not spent."""
    now, calls = [1.7e18], []

    def timestamp():
        now[0] += 1e9 * delay + 1e5
        calls.append(np.float64((now[0] + 5e9) / 1e9))
        now[0] += 1e9 * delay + 1e5
        return types.SimpleNamespace(numpy=lambda: calls[-1])

    monkeypatch.setattr(noted.tf, "timestamp", timestamp)
    monkeypatch.setattr(noted.time, "time_ns", lambda: round(now[0]))
    clock = clock_there()
    assert len(calls) == asked
    assert clock.offset_seconds == pytest.approx(5.0, abs=2e-6)
    assert clock.error_seconds == pytest.approx(delay + 1e-4, abs=2e-6)


def test_clocks_are_compared_again_after_a_loss_and_when_time_has_passed(monkeypatch):
    clocks, now = iter([Clock(1.0, 2e-4), Clock(7.0, 1e-4), Clock(8.0, 1e-4)]), [0.0]
    monkeypatch.setattr("tfdist.parameter_server.spans.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tfdist.parameter_server.spans.clock_there", lambda: next(clocks))
    spans = ServerSpans(0, 9, workers=2)
    assert spans.noted(0).times(["pulled"], [9.0]) == {"pulled": 8 * 10**9}
    assert spans.noted(0).times(["pulled"], [9.0]) == {"pulled": 8 * 10**9}
    spans.forget(0)
    assert spans.noted(0).times(["pulled"], [9.0]) == {"pulled": 2 * 10**9}
    now[0] = 29.0
    assert spans.noted(0).times(["pulled"], [9.0]) == {"pulled": 2 * 10**9}
    now[0] = 31.0
    assert spans.noted(0).times(["pulled"], [9.0]) == {"pulled": 10**9}
    assert spans.metadata() == {
        "clock_offset_seconds": [8.0, None, 0.0],
        "largest_clock_error_seconds": 2e-4,
    }


def test_what_was_done_for_steps_that_never_were_is_left_out():
    spans = ServerSpans(1, 9, workers=1)
    for step in range(4):
        spans.begin_step(step)
        spans.add_update(0, 0, 0, 10, 20)
        spans.end_step()
    spans.add_update(0, 0, 0, 30, 40)  # an epoch has ended, and this was under way
    found = [event["args"]["step"] for event in spans.events(4) if event["ph"] == "X"]
    assert found == [1, 2, 3]
