"""The time of a step with `sharding`, against the same computed by hand."""

import pytest

from tests.plan.test_step_time import MACHINES, PARTS, carried, message
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Costs, Machines
from tfdist.plan.sharded_time import Exchange, sharded, with_weights_in_parts

ROWS = message(4, 1.0, aggregation="gather", is_rows=True)


def exchange(messages, ranks=2, machines=MACHINES, tables=(), longer=(1.0, 1.0)):
    ways, of_tables = (carried(some, ranks, machines) for some in (messages, tables))
    return Exchange(messages, ways, of_tables, longer)


def test_updates_travel_after_their_half_of_the_sums():
    seconds, sent = sharded(PARTS, exchange([message(4, 1.0)]), 2)
    assert seconds == pytest.approx(3 + 2 + 0.5 / 2 + 2)
    assert sent == pytest.approx(4e6)


def test_weights_in_parts_are_gathered_once_more():
    seconds, sent = with_weights_in_parts(PARTS, exchange([message(4, 1.0)]), 2)
    assert seconds == pytest.approx(3 + 2 + 0.5 / 2 + 2 * 2)
    assert sent == pytest.approx(1.5 * 4e6)


def test_parts_may_take_longer_than_half_of_a_sum():
    given = exchange([message(4, 1.0)], longer=(1.5, 2.0))
    seconds, _ = sharded(PARTS, given, 2)
    assert seconds == pytest.approx(3 + 1.5 * 2 + 0.5 / 2 + 2.0 * 2)


def test_rows_travel_whole_beside_the_backward_pass():
    given = exchange([ROWS], 3, longer=(1.5, 2.0))  # 8 s: each rank receives those of two others
    for step in (sharded, with_weights_in_parts):
        seconds, sent = step(PARTS, given, 3)
        assert seconds == pytest.approx(3 + 8 + 0.5 / 3)
        assert sent == pytest.approx(8e6)


def test_whole_tables_are_gathered_once():
    table = message(30, 1.0)
    given = exchange([ROWS, message(4, 1.0)], tables=[table])
    rows = dense = 4.0
    for step, gathers in ((sharded, 1), (with_weights_in_parts, 2)):
        seconds, sent = step(PARTS, given, 2)
        # The updates of a half of each message's variables begin when the message is there.
        assert seconds == pytest.approx(3 + rows + dense / 2 + 0.5 / 4 + gathers * dense / 2 + 15)
        assert sent == pytest.approx(1e6 * (rows + dense / 2 + gathers * dense / 2 + 15))


def test_only_the_link_takes_longer():
    busy = Machines(Link(0.0, 1e-12), costs=Costs(1e-6))
    given = exchange([message(4, 1.0)], machines=busy, longer=(1.5, 2.0))
    seconds, _ = sharded(PARTS, given, 2)
    assert seconds == pytest.approx(3 + 2 + 0.5 / 2 + 2)
