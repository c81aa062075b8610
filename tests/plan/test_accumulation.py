"""Micro-batches compute one after the other, and their sums are exchanged once."""

import dataclasses

import pytest

from tests.plan.test_candidates import MODEL, SIZE, SMALL, TABLE, planner, with_a_table
from tfdist.local.choices import LocalSGD
from tfdist.plan import candidates
from tfdist.plan.alpha_beta import Link
from tfdist.plan.candidate import Candidate
from tfdist.plan.machine import Costs, Machines
from tfdist.plan.server_time import CHIEF
from tfdist.plan.workload import Message

UPDATE = 1e-8  # seconds for each byte of the weights: 0.4 of a step of one second
BETA = 1e-8  # of the link: 0.4 s for the weights


def accumulating(steps, early=1.0, messages=None, **options):
    made = planner(1.0)
    machines = Machines(Link(0.0, BETA), costs=Costs(update=UPDATE, early=early), **options)
    workload = dataclasses.replace(MODEL, accumulation_steps=steps)
    given = made.messages if messages is None else (lambda *_: messages)
    return dataclasses.replace(made, workload=workload, machines=machines, messages=given)


PASSES = 1 - SIZE * UPDATE


def test_one_device_updates_once():
    for steps in (1, 2, 5):
        alone = accumulating(steps).alone()
        assert alone.step == pytest.approx(PASSES + SIZE * UPDATE / steps)
        assert alone.efficiency == pytest.approx(1.0)
        assert (alone.sent, alone.accumulated) == (0.0, steps)


@pytest.mark.parametrize("steps", [2, 5])
def test_the_exchange_begins_when_all_gradients_are_there(steps):
    early = [Message(SIZE, SIZE, 0.0)]  # at the beginning of the backward pass
    exchanged = SIZE * BETA
    one = accumulating(1, messages=early).predict(Candidate("horovod"), 2)
    assert one.step == pytest.approx(1.0)  # all of it is beside the backward pass
    found = accumulating(steps, messages=early).predict(Candidate("horovod"), 2)
    assert found.step == pytest.approx(PASSES + (exchanged + SIZE * UPDATE) / steps)
    assert found.sent == pytest.approx(SIZE / steps)
    assert found.efficiency == pytest.approx((PASSES + SIZE * UPDATE / steps) / found.step)


def test_weights_in_parts_are_exchanged_with_each_step():
    late = [Message(SIZE, SIZE, 1.0)]
    candidate = Candidate("multi_worker", sharding="parameters")
    one, four = (accumulating(n, messages=late).predict(candidate, 2) for n in (1, 4))
    assert one.step == pytest.approx(PASSES + 1.5 * SIZE * BETA + SIZE * UPDATE / 2)
    assert four.step == pytest.approx(PASSES + 1.5 * SIZE * BETA + SIZE * UPDATE / 2 / 4)
    assert four.sent == one.sent == pytest.approx(1.5 * SIZE)


def test_parts_of_updates_are_exchanged_once():
    late = [Message(SIZE, SIZE, 1.0)]
    candidate = Candidate("multi_worker", sharding="optimizer")
    found = accumulating(4, messages=late).predict(candidate, 2)
    assert found.step == pytest.approx(PASSES + (SIZE * BETA + SIZE * UPDATE / 2) / 4)
    assert found.sent == pytest.approx(SIZE / 4)


def test_rounds_have_updates_and_not_steps():
    late = [Message(SIZE, SIZE, 1.0)]
    found = accumulating(4, messages=late).predict(Candidate("horovod", local=LocalSGD(8)), 2)
    expected = PASSES + (SIZE * UPDATE + SIZE * BETA / 8) / 4
    assert found.step == pytest.approx(expected)
    assert found.sent == pytest.approx(SIZE / 8 / 4)


def test_workers_of_parameter_servers_send_their_mean_or_each_part_of_a_batch():
    late = [Message(SIZE, SIZE, 1.0)]
    alone, together = (
        accumulating(4, messages=late).predict(candidate, 2)
        for candidate in (
            Candidate("parameter_server"),
            Candidate("parameter_server", synchronous=True),
        )
    )
    assert alone.step == pytest.approx(PASSES + (2 * SIZE * BETA + SIZE * UPDATE + CHIEF) / 4)
    # The link of the server carries the weights and the gradients of both.
    expected = PASSES + 2 * 2 * SIZE * BETA + SIZE * UPDATE / 4 + 2 * CHIEF
    assert together.step == pytest.approx(expected)
    assert (alone.sent, together.sent) == (SIZE / 4, SIZE)


def test_accumulated_gradients_of_tables_are_whole():
    made = with_a_table()
    workload = dataclasses.replace(made.workload, accumulation_steps=4)
    four = dataclasses.replace(made, workload=workload)
    found = four.predict(Candidate("horovod"), 2)
    assert found.sent == pytest.approx((SMALL.nbytes + TABLE.nbytes) / 4)
    rows = four.predict(Candidate("horovod", sharding="parameters"), 2)
    assert rows.sent == made.predict(Candidate("horovod", sharding="parameters"), 2).sent


def test_the_slowest_rank_is_waited_for_once_in_an_update():
    late = [Message(4, 4, 1.0)]
    made = accumulating(4, messages=late)
    costs = dataclasses.replace(made.machines.costs, spread=0.5)
    made = dataclasses.replace(made, machines=dataclasses.replace(made.machines, costs=costs))
    computed = 4 * PASSES + SIZE * UPDATE
    expected = (computed + costs.latest(computed, 2)) / 4
    assert made.predict(Candidate("horovod"), 2).step == pytest.approx(expected, abs=1e-6)


def test_an_update_and_an_epoch_count_all_steps():
    made = accumulating(4)
    found = made.predict(Candidate("multi_worker"), 2)
    assert (found.batch_size, found.samples_per_update) == (128, 512)
    alone = made.alone()
    assert candidates.with_few_updates(alone, [found], 20 * 512) == []
    assert candidates.with_few_updates(alone, [found], 20 * 512 - 1) == [2]
    assert found.epoch_seconds(129) == pytest.approx(2 * found.step)
    reason = candidates.recommend(made.alone(), [found], 0.1).reason
    assert "an update is of 512 samples in 4 steps: pass batch_size=128 to `fit`" in reason
