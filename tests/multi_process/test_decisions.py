"""Callbacks decide for all ranks, wherever they decide; so does Ctrl-C."""

import numpy as np
import pytest

from tests.multi_process import checks
from tests.multi_process.jobs import PAIRS, scenario
from tests.multi_process.reference import BATCHES, OneDevice
from tests.multi_process.scenarios import decisions

ONES = decisions.ONES


def with_rates(*rates):
    """One device that trains an epoch with each rate."""
    device = OneDevice()
    for rate in rates:
        device.epoch(rate=rate)
    return device


@scenario(decisions.early_stopping)
def test_early_stopping_of_one_rank_stops_all_and_restores_its_best_epoch(found):
    assert [rank["epochs"] for rank in found] == [2, 2]
    expected, best = OneDevice().train(2), OneDevice().train(1)
    expected.weights = best.weights  # what EarlyStopping restores
    checks.trained(found, expected)


@scenario(decisions.reduce_on_plateau)
def test_a_plateau_of_one_rank_lowers_the_rate_of_all(found):
    checks.trained(found, with_rates(0.05, 0.05, 0.025, 0.0125))
    assert found[0]["state"]["rate"] == pytest.approx(0.00625)


@pytest.mark.full
@scenario(decisions.learning_rate_at_end_of_epoch)
def test_a_rate_that_one_rank_sets_at_the_end_of_an_epoch(found):
    checks.trained(found, with_rates(0.05, 0.02, 0.02))


@scenario(decisions.learning_rate_in_batch)
def test_a_rate_that_one_rank_sets_in_a_batch(found):
    expected = OneDevice()
    expected.epoch(BATCHES[:3])
    expected.epoch(BATCHES[3:], rate=0.02)
    checks.trained(found, expected)


@scenario(decisions.learning_rate_before_a_batch)
def test_a_rate_that_one_rank_sets_before_a_batch_is_no_silent_drift(found):
    for rank in found:
        assert rank["error"].startswith("RuntimeError: The ranks' weights")
        assert rank["state"]["iterations"] == 3


@scenario(decisions.rates_that_differ, (*PAIRS, "multi_worker-3"))
def test_the_lowest_rank_that_changed_something_counts(found):
    checks.equal(found)
    assert found[0]["state"]["rate"] == pytest.approx({2: 0.01, 3: 0.02}[len(found)])


@pytest.mark.full
@scenario(decisions.different_changes)
def test_where_ranks_change_different_things_only_those_of_the_lowest_rank_count(found):
    assert [rank["error"] for rank in found] == ["", ""]
    expected = with_rates(0.05)
    expected.weights = list(ONES)
    expected.epoch()
    checks.trained(found, expected)


@scenario(decisions.stop_in_batch)
def test_stopping_in_a_batch_of_one_rank_stops_all_there(found):
    expected = OneDevice().train(1, BATCHES[:3])
    checks.trained(found, expected)
    checks.history(found, expected)
    assert [len(rank["batches"]) for rank in found] == [3, 3]


@pytest.mark.full
@scenario(decisions.stop_in_batch_by_a_subclass)
def test_subclasses_of_callbacks_that_only_write_may_decide(found):
    checks.trained(found, OneDevice().train(1, BATCHES[:3]))
    assert [rank["epochs"] for rank in found] == [1, 1]


@scenario(decisions.metrics_in_batches)
def test_callbacks_see_the_metrics_of_one_device_in_batches(found):
    expected = OneDevice()
    batches = expected.epoch() + expected.epoch()
    for rank in found:
        assert len(rank["batches"]) == len(batches)
        for ours, theirs in zip(rank["batches"], batches):
            checks.metrics(ours, theirs)
    checks.history(found, expected)
    checks.trained(found, expected)


@pytest.mark.full
@pytest.mark.parametrize("hook", decisions.HOOKS)
@scenario(decisions.weights_set_in_one_rank)
def test_weights_that_one_rank_sets_are_adopted(found, hook):
    before, after = {"on_train_begin": (0, 2), "on_train_end": (2, 0)}.get(hook, (1, 1))
    expected = OneDevice().train(before)
    expected.weights = list(ONES)
    checks.trained(found, expected.train(after), hook)


@scenario(decisions.drift)
def test_weights_that_drift_apart_are_an_error_everywhere(found):
    first, second = (rank["error"] for rank in found)
    assert first.startswith("RuntimeError: The ranks' weights or optimizer states have become")
    assert "checksums" in first
    assert first == second


@scenario(decisions.ctrl_c)
def test_ctrl_c_of_one_rank_interrupts_all_at_one_step(found):
    for rank in found:
        assert rank["fit"] == "KeyboardInterrupt: Ctrl-C in rank 1"
        assert rank["handler restored"]
    assert checks.equal(found, "stopped")["iterations"] >= 2 * len(BATCHES)
    assert found[0]["epochs"] == found[1]["epochs"] < 10**5


@scenario(decisions.ctrl_c)
def test_training_goes_on_after_ctrl_c(found):
    expected = OneDevice().train(1)
    checks.trained(found, expected, "again")
    checks.history(found, expected)


@scenario(decisions.ctrl_c_in_evaluate)
def test_ctrl_c_interrupts_evaluate(found):
    for rank in found:
        assert rank["evaluate"] == "KeyboardInterrupt: Ctrl-C in rank 1"
        assert rank["handler restored"]
        checks.metrics(rank["again"], OneDevice().evaluate(range(67)))


@pytest.mark.full
@scenario(decisions.backups_of_different_epochs)
def test_the_backup_of_rank_0_counts(found):
    files = ["SHA256SUMS", "latest.weights.h5", "training_metadata.json"]
    expected = OneDevice().train(5)
    for rank in found:
        assert rank["death"].startswith("_Died")
        assert rank["written"] == [files] * 2
        assert rank["begun"] == [3, 4]
        np.testing.assert_allclose(rank["losses"], expected.history["loss"][3:], rtol=2e-5)
        # Rank 0 deletes its backup at the end, as it would alone; rank 1 leaves its folder alone.
        assert rank["left"] == [False, True]
    checks.trained(found, expected)


@pytest.mark.full
@scenario(decisions.callbacks_used_again_after_an_error)
def test_callbacks_can_be_used_again_after_an_error(found):
    for rank in found:
        assert rank["death"].startswith("_Died")
        assert rank["paths"] == ["backup", "log.csv"]
        assert rank["epochs"] == 2
    assert found[0]["lines"] == 1 + 2 + 2
    checks.trained(found, OneDevice().train(4))


@pytest.mark.full
@scenario(decisions.weights_loaded_after_an_error)
def test_weights_are_loaded_everywhere_after_an_error_in_a_callback(found):
    assert [rank["death"][:5] for rank in found] == ["_Died"] * 2
    expected = OneDevice()
    expected.weights = list(ONES)
    checks.trained(found, expected)


@scenario(decisions.not_a_number)
def test_a_gradient_that_is_not_finite_stops_all_and_is_named_by_all(found):
    for rank in found:
        assert (rank["epochs"], rank["iterations"]) == (1, 3)
        step, variable, replica = rank["findings"][0]
        assert (step, variable.rpartition("/")[2], replica) == (3, "kernel", 1)
