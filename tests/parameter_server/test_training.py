"""Asynchronous training in Keras' `fit`, on real servers in one process."""

import numpy as np
import pytest

from tests.parameter_server import scenarios

pytestmark = pytest.mark.xdist_group("parameter_server")

USUAL = ("static", "static, unknown length", "static, endless", "dynamic")


def _kinds(*kinds):
    """Kinds of input, marked with the scenario that trains with them."""
    for kind in kinds:
        marks = [pytest.mark.scenario("samples_of_more_kinds"), pytest.mark.full]
        if kind in USUAL:
            marks = [pytest.mark.scenario("samples")]
        yield pytest.param(kind, marks=marks)


KINDS = [
    "static",
    "static, shuffled",
    "static, unknown length",
    "dynamic",
    "dynamic, shuffled",
    "own pipelines",
]


@pytest.mark.parametrize("kind", list(_kinds(*KINDS)))
def test_each_sample_is_trained_once_per_epoch(found, kind):
    assert found[kind] == [[1.0] * scenarios.ROWS] * 2


@pytest.mark.parametrize("kind", list(_kinds("static, endless", "dynamic, endless")))
def test_endless_data_go_on_in_the_next_epoch(found, kind):
    first, second = np.array(found[kind])
    assert first.sum() == second.sum() == 15
    assert first.max() == 1
    assert (first + second).tolist() == [1.0] * scenarios.ROWS


@pytest.mark.scenario("counters")
def test_counters_are_exact(found):
    steps = 3 * scenarios.ROWS
    assert found["version"] == found["iterations"] == found["updates"] == steps


@pytest.mark.scenario("counters")
def test_the_chief_is_the_only_process_that_runs_the_script(found):
    assert found["processes"] == (0, 1, True)


@pytest.mark.scenario("counters")
def test_a_batch_ends_when_its_update_is_made(found):
    assert found["versions"] == list(range(1, 3 * scenarios.ROWS + 1))


@pytest.mark.scenario("counters")
def test_logs_count_every_step_once(found):
    """The weights do not move, so each epoch's logs are those of an evaluation."""
    assert "loss" in found["one device"]
    for name, value in found["one device"].items():
        np.testing.assert_allclose(found["history"][name], value, rtol=1e-6)


@pytest.mark.scenario("counters")
def test_staleness_reaches_history_and_tensorboard(found):
    assert len(found["history"]["staleness"]) == 3
    assert max(found["history"]["staleness_max"]) >= 1  # more, where a worker is held up
    assert found["tags"] == {"staleness/worker_0", "staleness/worker_1"}


@pytest.mark.scenario("rescaling")
def test_a_gradient_is_unscaled_with_what_its_loss_was_scaled_with(found):
    assert found == 1


@pytest.mark.scenario("overflow")
def test_updates_that_loss_scaling_skips_are_not_counted(found):
    assert found.pop("steps") == 30
    (updates,) = set(found.values())
    assert 0 < updates < 30


@pytest.mark.full
@pytest.mark.scenario("assigning")
def test_what_a_worker_assigns_is_where_the_variable_is(found):
    """A worker may die when its step is done."""
    assert found["places"] == [found["variable"]]
    assert "/job:ps" in found["variable"]
    assert found["value"]


@pytest.mark.full
@pytest.mark.scenario("shares")
def test_a_slow_worker_gets_less_where_the_chief_reads(found):
    assert found["static"] == [6, 6]
    slow, fast = found["dynamic"]
    assert 0 < slow < fast
    assert slow + fast == 12


@pytest.mark.parametrize("name", ["evaluate", "evaluate, steps", "evaluate, generator", "predict"])
@pytest.mark.scenario("evaluation")
def test_evaluation_is_that_of_one_device(found, name):
    np.testing.assert_allclose(found["ours"][name], found["one device"][name], rtol=1e-6)


@pytest.mark.scenario("stopping")
def test_training_stops_at_the_batch_where_it_is_stopped(found):
    assert found["stopped"] == (3, 3)
    assert found["next"] == [[1.0] * scenarios.ROWS]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["static", "dynamic", "synchronous"])
@pytest.mark.scenario("predicting_within_training")
def test_callbacks_may_predict_within_an_epoch(found, kind):
    assert found[kind] == [[1.0] * scenarios.ROWS]


@pytest.mark.full
@pytest.mark.scenario("predicting_within_accumulation")
def test_batches_that_no_call_has_counted_stay_counted_when_a_callback_predicts(found):
    whole = {"updates": 12, "samples": [48, 48], "batches": 24}
    assert found.pop("finite, some steps") == {"updates": 6, "samples": [24, 24], "batches": 12}
    assert found == dict.fromkeys(found, whole)


@pytest.mark.scenario("predicting_within_evaluation")
def test_callbacks_may_predict_within_an_evaluation(found):
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.scenario("reading_ahead")
def test_predicting_reads_no_more_than_two_batches_per_worker_ahead(found):
    assert found["predicted"] == list(range(12))
    assert found["ahead"] <= 4


@pytest.mark.scenario("dynamic_generator")
def test_the_chief_reads_generators(found):
    assert found == 5


@pytest.mark.full
@pytest.mark.scenario("saving")
def test_a_saved_model_goes_on_with_and_without_the_strategy(found):
    for ours, plain in (found["weights"], found["moments"]):
        assert len(ours) == len(plain) > 0
        for one, other in zip(ours, plain):
            np.testing.assert_array_equal(one, other)
    assert found["iterations"] == [8, 8, 16]


@pytest.mark.scenario("collected")
def test_the_end_of_a_coordinator_waits_for_nothing(found):
    """TensorFlow's stops its threads, for which it waits until no lost worker is waited for."""
    assert found == 2
