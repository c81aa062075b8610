"""Synchronous steps that do not wait for the slowest parts of a global batch."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.parameter_server import drop_scenarios as scenarios
from tests.parameter_server.drop_scenarios import BATCH, EPOCHS, OPTIONS, ROWS, X, Y
from tfdist.parameter_server.chief.refusals import check_drop
from tfdist.staleness import Policies, Synchronous

pytestmark = pytest.mark.xdist_group("parameter_server")


def test_a_backup_beside_it_is_refused():
    with pytest.raises(ValueError, match="Choose one of them. Received: backup=True, drop=1"):
        Synchronous(backup=True, drop=1)


@pytest.mark.parametrize("drop", [-1, 1.0, True])
def test_what_is_no_number_of_parts_is_refused(drop):
    with pytest.raises(ValueError, match=f"`drop` must be an integer >= 0. Received: drop={drop}"):
        Synchronous(drop=drop)


@pytest.mark.parametrize(("per_worker", "drop"), [(1, 4), (2, 8), (2, 9)])
def test_all_parts_cannot_be_dropped(per_worker, drop):
    policies = Policies.of(Synchronous(per_worker, drop=drop))
    with pytest.raises(ValueError, match=f"is {4 * per_worker} with 4 worker.*drop={drop}"):
        check_drop(policies, 4)


@pytest.mark.parametrize("policy", [Synchronous(2, drop=7), Synchronous(), None])
def test_other_numbers_are_allowed(policy):
    check_drop(Policies.of(policy), 4)


def by_hand(steps, accumulates=1, factor=lambda rows: 1.0):
    """One device on batches of these samples: the weights, and the loss of each epoch."""
    model = scenarios.model_of(None)
    model.build((None, 3))
    kept, losses = [], []
    for rows in steps:
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean((model(X[rows]) - Y[rows]) ** 2, axis=1)
            loss = tf.reduce_mean(errors) * factor(rows)
        kept.append(tape.gradient(loss, model.trainable_variables))
        losses.append(errors.numpy())
        if len(kept) == accumulates:
            mean = [tf.add_n(of_variable) / accumulates for of_variable in zip(*kept)]
            model.optimizer.apply(mean, model.trainable_variables)
            kept = []
    epochs = np.split(np.array(losses, object), EPOCHS)
    return model.get_weights(), [np.concatenate(epoch).mean() for epoch in epochs]


def parts_of(name):
    return 2 * OPTIONS.get(name, OPTIONS["two parts"])["staleness"].parts_per_worker


@pytest.mark.scenario("drop")
def test_a_step_is_that_of_one_device_without_the_samples_that_were_dropped(found):
    for name in (*OPTIONS, "stopped in the middle"):
        result = found["trained"][name]
        accumulates = OPTIONS.get(name, {}).get("accumulation_steps", 1)
        weights, losses = by_hand(result["steps"], accumulates)
        for ours, theirs in zip(result["weights"], weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6, err_msg=name)
        assert result["history"]["loss"] == pytest.approx(losses, rel=1e-5), name
        assert result["iterations"] == result["version"] == len(result["steps"]) / accumulates


@pytest.mark.scenario("drop")
def test_a_loss_that_is_a_sum_is_scaled_up_to_the_whole_batch(found):
    result = found["trained"]["sum"]
    whole = {BATCH // 2: BATCH, 1: 1}
    weights, _ = by_hand(result["steps"], factor=lambda rows: whole[len(rows)] / BATCH)
    for ours, theirs in zip(result["weights"], weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.scenario("drop")
def test_only_whole_parts_are_dropped_and_all_are_counted(found):
    batches = [range(start, min(start + BATCH, ROWS)) for start in range(0, ROWS, BATCH)] * EPOCHS
    for name, result in found["trained"].items():
        if name == "several steps":
            continue
        parts = 4 if name == "noisy" else parts_of(name)
        arrived = dropped = 0
        for rows, batch in zip(result["steps"], batches, strict=True):
            length = -(-len(batch) // parts)
            whole = [[*batch[at : at + length]] for at in range(0, len(batch), length)]
            kept = [part for part in whole if part[0] in rows]
            assert sorted(rows) == [row for part in kept for row in part], name
            arrived += len(kept)
            dropped += len(whole) - len(kept)
        report = result["report"]
        assert report.dropped_parts == dropped > 0, name
        assert sum(result["history"]["dropped_parts"]) == dropped, name
        assert 0 < report.late <= dropped and report.redundant == 0, name
        assert report.worker(1).late >= report.worker(0).late, name
        assert sum(result["history"]["seen"]) == sum(map(len, result["steps"])), name


@pytest.mark.scenario("drop")
def test_the_last_short_batch_is_trained_on(found):
    for name in (*OPTIONS, "stopped in the middle", "noisy"):
        steps = found["trained"][name]["steps"]
        assert steps[6] == steps[13] == [ROWS - 1], name


@pytest.mark.scenario("drop")
def test_several_steps_of_a_call_drop_parts_too(found):
    result = found["trained"]["several steps"]
    dropped = result["report"].dropped_parts
    assert dropped > 0
    assert sum(result["history"]["seen"]) == EPOCHS * ROWS - dropped * BATCH // 2
    assert result["iterations"] == result["version"] == 14


@pytest.mark.scenario("drop")
def test_nobody_waits_for_a_worker_that_hangs_and_its_result_is_never_used(found):
    result = found["held"]
    assert result["held"] == (1, 0), "it was still computing when the first `fit` had ended"
    assert result["steps of the first"] == 7
    assert result["report"].dropped_parts == 6
    assert result["report"].late == result["report"].worker(1).late == 1
    weights, _ = by_hand(result["steps"])
    for ours, theirs in zip(result["weights"], weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.scenario("drop")
def test_a_strategy_refuses_to_drop_all_parts(found):
    assert found["refused"].endswith("an update needs a part. Received: drop=2")
    assert "which is 2 with 2 worker(s)" in found["refused"]


@pytest.mark.scenario("drop")
def test_not_always_the_same_samples_are_dropped(found):
    steps = found["trained"]["two parts"]["steps"]
    assert len({rows[0] % BATCH for rows in steps if len(rows) == BATCH // 2}) == 2


@pytest.mark.scenario("drop")
def test_statistics_and_random_numbers_count_once_a_step(found):
    result = found["trained"]["noisy"]
    one_device = scenarios.trained(None, noisy=True)
    assert result["seeds"] == one_device["seeds"] != []
    mean = np.zeros(3)
    for rows in result["steps"]:
        mean = 0.99 * mean + 0.01 * X[rows].mean(axis=0)
    moving_mean = result["weights"][2]
    np.testing.assert_allclose(moving_mean, mean, rtol=0, atol=1e-6)


@pytest.mark.scenario("drop")
def test_nothing_is_dropped_when_the_model_is_evaluated_or_predicts(found):
    for name, result in found["trained"].items():
        if name in ("noisy", "sum"):  # other layers, another loss
            continue
        model = scenarios.model_of(None)
        model.set_weights(result["weights"])
        expected = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
        assert result["evaluate"][0] == pytest.approx(expected[0], rel=1e-5), name
        np.testing.assert_allclose(
            result["predict"], model.predict(X, batch_size=BATCH, verbose=0), atol=1e-6
        )


@pytest.mark.full
def test_nobody_waits_for_a_worker_that_is_stopped_and_then_killed(start, tmp_path):
    processes, _ = start(3, 1, job="tests.parameter_server.dropping")
    assert processes["chief", 0].wait(300) == 0, (tmp_path / "chief-0.log").read_text()
    facts = json.loads((tmp_path / "facts").read_text())
    assert facts["steps"] == ([BATCH * 2 // 3] * 6 + [1]) * 3
    assert facts["dropped"] == 6 * 3
    assert facts["late"] >= 1
    assert facts["apart"] <= 1e-6
    assert "worker 0" in (tmp_path / "chief-0.log").read_text()


@pytest.mark.full
def test_no_thread_waits_until_a_worker_that_hangs_has_freed_a_tensor(start, tmp_path):
    processes, _ = start(2, 1, job="tests.parameter_server.hanging")
    assert processes["chief", 0].wait(300) == 0, (tmp_path / "chief-0.log").read_text()
    assert json.loads((tmp_path / "facts").read_text()) == [2000.0, True]
