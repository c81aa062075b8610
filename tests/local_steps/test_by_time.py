"""How rounds that last a time are planned."""

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

import tests.devices  # noqa: F401
from tests.local_steps import by_hand, checks
from tests.local_steps.test_mirrored import Here
from tests.local_steps.timed import TIMED, Timed, Written
from tests.multi_process.scenarios import local_steps
from tfdist.local.by_time import Measured, Planner, rows_of, seconds_of
from tfdist.step.local_pace import ends_of

SPEEDS = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=12)


def test_seconds_of_a_text():
    assert seconds_of("2s") == 2.0
    assert seconds_of("0.5s") == 0.5
    for text in ("", "2", "s", "0s", "-1s", "2 s", "2m", "1e3s", "infs", "9" * 400 + "s"):
        with pytest.raises(ValueError, match=r"such as `steps=8`.*Received: steps="):
            seconds_of(text)


@hypothesis.given(SPEEDS, st.integers(1, 200))
def test_each_batch_is_divided_and_everybody_takes_part(speeds, steps):
    rows = np.array(rows_of(speeds, steps))
    assert len(rows) <= min(steps, 32)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert (rows >= 0).all()
    assert (rows[0] > 0).all(), "all are measured, however early a round ends"
    assert (rows[:, np.argmax(speeds)] > 0).all()


@hypothesis.given(SPEEDS, st.integers(1, 32))
def test_slower_processes_take_part_no_more_often(speeds, steps):
    turns = (np.array(rows_of(speeds, steps)) > 0).sum(axis=0)
    order = np.argsort(speeds, kind="stable")
    assert (np.diff(turns[order]) >= 0).all()


@pytest.mark.parametrize("speeds", [[3, 1], [1, 1, 3], [3, 3, 3, 1], [5, 4, 2, 1], [10, 1, 1, 1]])
def test_samples_are_in_proportion_to_speeds(speeds):
    rows = np.array(rows_of(speeds, 32))
    wanted = np.array(speeds) / sum(speeds)
    np.testing.assert_allclose(rows.mean(axis=0), wanted, rtol=0.1)
    turns = (rows > 0).sum(axis=0)
    # As often as it is fast, and once more in the first step.
    np.testing.assert_allclose(turns / 32, np.array(speeds) / max(speeds), atol=1.5 / 32)


@hypothesis.given(SPEEDS, st.integers(1, 40), st.integers(1, 3))
def test_the_ends_of_parts_rise_and_are_equal_where_there_is_no_part(speeds, steps, local):
    shares = np.repeat(np.array(rows_of(speeds, steps)), local, axis=1) / local
    ends = ends_of(shares)
    assert (ends[:, 0] == 0).all() and (ends[:, -1] == 1).all()
    assert ((np.diff(ends, axis=1) > 0) == (shares > 0)).all()


def measured(samples, busy, lasted=None):
    return [Measured(*own) for own in zip(samples, busy, lasted or busy, strict=True)]


def test_a_round_has_as_many_updates_as_fit_into_its_time():
    planner = Planner(2.0, 2)
    assert planner.first().updates == 1
    # Both need 0.1 s for an update.
    assert planner.next(measured([80, 80], [1.0, 1.0]), updates=10, steps=10).updates == 20
    # Beside the steps each needs as much time again.
    plan = planner.next(measured([80, 80], [1.0, 1.0], [2.0, 2.0]), updates=10, steps=10)
    assert plan.updates == 10
    assert plan.rows == ((0.5, 0.5),) * 10


def test_the_next_round_counts_with_what_the_plan_saves():
    # Even parts: the slow process needs 0.3 s for an update. With three quarters of the samples
    # for the fast one, both need 0.15 s.
    plan = Planner(3.0, 2).next(measured([80, 80], [1.0, 3.0]), updates=10, steps=10)
    assert plan.updates == 20
    rows = np.array(plan.rows)
    assert (rows[:, 1] > 0).sum() == 8  # 7, and in the first step
    np.testing.assert_allclose(rows.mean(axis=0), [0.75, 0.25], rtol=0.02)


def test_a_round_has_at_most_four_times_the_updates_of_the_last_one():
    # After one step nobody knows that the data take 0.3 s for each batch.
    planner, updates, rounds = Planner(2.0, 2), 1, []
    for _ in range(5):
        lasted = 0.005 * updates + 0.3 * (updates - 1)
        told = measured([8 * updates] * 2, [0.005 * updates] * 2, [lasted] * 2)
        updates = planner.next(told, updates, updates).updates
        rounds.append(updates)
    assert rounds[0] == 4
    assert all(6 <= updates <= 9 for updates in rounds[1:]), rounds


def test_a_process_that_was_slow_for_a_while_comes_back():
    planner = Planner(1.0, 2)
    plan, made = planner.first(), []
    for epoch in range(8):
        left, slow = 10, 0.3 if epoch < 2 else 0.001
        while left:  # rounds end early at the end of an epoch
            steps = min(left, plan.updates)
            left -= steps
            rows = np.array([plan.rows[step % len(plan.rows)] for step in range(steps)])
            samples = 16 * rows.sum(axis=0)
            busy = samples * [0.001, slow]
            plan = planner.next(measured(samples, busy), steps, steps)
            made.append((rows > 0).sum(axis=0))
    assert all(of_slow > 0 for _, of_slow in made), made
    assert made[-1][0] == made[-1][1] == 10, made
    np.testing.assert_allclose(plan.rows[0], [0.5, 0.5], rtol=1e-6)


def test_a_clock_that_was_set_back_does_not_count():
    planner = Planner(1.0, 2)
    usual = planner.next(measured([80, 20], [1.0, 1.0]), updates=10, steps=10)
    told = measured([80, 20], [1.0, -3600.0], [1.0, -3600.0])
    assert planner.next(told, updates=10, steps=10) == usual
    told = measured([80, 20], [-3600.0, -3600.0])
    assert planner.next(told, updates=10, steps=10) == planner.first()


def test_an_update_may_have_several_steps():
    plan = Planner(2.0, 2).next(measured([80, 80], [1.0, 1.0]), updates=10, steps=20)
    assert (plan.updates, len(plan.rows)) == (20, 20)  # of 40 steps, in two repetitions


def test_a_round_of_no_update_tells_nothing():
    planner = Planner(2.0, 2)
    assert planner.next(measured([0, 0], [0.0, 0.0]), updates=0, steps=1) == planner.first()


def test_one_slow_moment_does_not_count():
    planner = Planner(1.0, 2)
    for _ in range(3):
        planner.next(measured([80, 80], [1.0, 1.0]), updates=10, steps=10)
    plan = planner.next(measured([80, 80], [9.0, 1.0]), updates=10, steps=10)
    assert all(row == (0.5, 0.5) for row in plan.rows)


def test_the_speed_of_a_process_without_samples_is_that_of_before():
    planner = Planner(1.0, 2)
    planner.next(measured([80, 20], [1.0, 1.0]), updates=10, steps=10)
    plan = planner.next(measured([8, 0], [0.1, 0.0]), updates=1, steps=1)
    np.testing.assert_allclose(np.array(plan.rows).mean(axis=0), [0.8, 0.2], rtol=0.1)


@pytest.mark.parametrize("name", TIMED)
def test_the_devices_of_one_process_have_rounds_by_time(name, tmp_path):
    case = TIMED[name]
    written = Written()
    strategy = local_steps.make(Here(tmp_path), case)
    model, history = by_hand.fit(case, strategy, callbacks=[written])
    weights = local_steps.copies(strategy, model.weights)
    checks.equal_copies([weights], name)
    assert all(row == (1.0,) for _, rows in written.plans for row in rows)
    expected = Timed(case, 2, written.plans, written.plan_of_step).train()
    for (copy, *_), variable in zip(weights, expected.models[0].weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(copy - variable.numpy()).max() <= case.tolerance, variable.path
    logs = [history.history[f"updates_per_round_{replica}"] for replica in range(2)]
    assert logs[0] == logs[1] and len(logs[0]) == case.epochs


def test_an_interrupted_training_leaves_nothing_to_the_next_one(tmp_path):
    case = TIMED["mean"]
    strategy = local_steps.make(Here(tmp_path), case)
    first = strategy.pace.plan

    def interrupt(batch, logs=None):
        if batch == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)]
        by_hand.fit(case, strategy, callbacks=callbacks)
    strategy.begin_pace()  # as the next `fit` does
    strategy.keep_pace()
    assert strategy.pace.plan == first
    assert strategy.epoch_of_pace() == {}
