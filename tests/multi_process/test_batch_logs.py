"""Callbacks that look into batches see the numbers of one device."""

import numpy as np
import pytest

from tests.multi_process import checks
from tests.multi_process.jobs import scenario
from tests.multi_process.reference import BATCHES, OneDevice, Y
from tests.multi_process.scenarios import batch_logs

SO_FAR = [np.concatenate(BATCHES[: number + 1]) for number in range(len(BATCHES))]


def means_so_far(losses):
    return [float(np.mean(losses[: number + 1])) for number in range(len(losses))]


@pytest.mark.parametrize("kind", ["Untracked", "UntrackedTwice", "Tracked"])
@scenario(batch_logs.own_steps)
def test_numbers_of_own_steps_are_those_of_one_device(found, kind):
    device = OneDevice()
    losses = {"train": [device.batch(rows)["loss"] for rows in BATCHES]}
    losses["test"] = [device.evaluate(rows)["loss"] for rows in BATCHES]
    for rank in found:
        for name, values in losses.items():
            expected = means_so_far(values) if kind == "Tracked" else values
            seen = rank[kind][name]
            np.testing.assert_allclose([logs["loss"] for logs in seen], expected, **checks.METRICS)
            if kind == "UntrackedTwice":
                twice = [logs["twice"] for logs in seen]
                np.testing.assert_allclose(twice, np.multiply(2, expected), **checks.METRICS)
    assert found[0][kind] == {**found[1][kind], "state": found[0][kind]["state"]}
    checks.trained([rank[kind] for rank in found], device)


@scenario(batch_logs.own_steps)
def test_own_steps_of_single_batches_return_the_loss_of_all_samples(found):
    expected = {"loss": OneDevice().evaluate(range(15))["loss"]}
    for rank in found:
        for logs in rank["on batch"]:
            checks.metrics(logs, expected)


@scenario(batch_logs.vectors)
def test_metrics_may_be_vectors(found):
    expected = [[len(rows), float(Y[rows].sum())] for rows in SO_FAR]
    for rank in found:
        for name in ("train", "test"):
            np.testing.assert_allclose(rank[name], expected, rtol=1e-5, atol=1e-5)


@scenario(batch_logs.evaluated)
def test_batches_of_an_evaluation_show_the_metrics_of_all_ranks(found):
    device = OneDevice()
    for rank in found:
        checks.metrics(rank["metrics"], device.evaluate(SO_FAR[-1]))
        for ours, rows in zip(rank["batches"], SO_FAR, strict=True):
            checks.metrics(ours, device.evaluate(rows))
    assert found[0]["batches"] == found[1]["batches"] == found[1]["in one rank"]
    assert found[0]["in one rank"] == []


@scenario(batch_logs.stopped)
def test_an_evaluation_that_one_rank_ends_is_ended_by_all(found):
    expected = OneDevice().train(2)
    for rank in found:
        assert rank["seen"] == [0, 1] * 3
        value = expected.evaluate(range(32))["loss"]
        np.testing.assert_allclose(rank["history"]["val_loss"][-1], value, **checks.METRICS)
    checks.trained(found, expected)


@scenario(batch_logs.unasked)
def test_where_no_callback_looks_nothing_is_read(found):
    for rank in found:
        without, watched = rank["counts"]
        assert without <= 2  # at the end, and where the step is traced
        assert watched >= len(BATCHES)


@scenario(batch_logs.metric_from_outside)
def test_a_metric_that_was_made_outside_of_the_scope_is_refused(found):
    for errors in found:
        for error in errors:
            assert error.startswith("ValueError: A metric was not made in the scope")
