"""Global batches are those of one device; data that ranks divide are trained together."""

import numpy as np
import pytest

from tests.multi_process import checks
from tests.multi_process.jobs import ALL, PAIRS, scenario
from tests.multi_process.reference import BATCHES, ROWS, OneDevice, X, Y, in_batches
from tests.multi_process.scenarios import data
from tests.multi_process.shards import FIRST, SHARDS

DEVICES = {"multi_worker-2x2": 2}


def of(found, name):
    """What the ranks found out in the case `name`."""
    return [rank[name] for rank in found]


@pytest.fixture
def devices(request):
    """The replicas in each rank of the test."""
    return DEVICES.get(request.node.callspec.params["found"].job, 1)


def trained(found, expected, extra_iterations=2):
    checks.trained(found, expected, extra_iterations=extra_iterations)
    checks.history(found, expected)


@pytest.mark.parametrize("name", data.INPUTS)
@scenario(data.global_batches)
def test_global_batches_are_those_of_one_device(found, name):
    known = name in ("arrays", "tensors", "data set", "endless data set", "endless generator")
    trained(of(found, name), OneDevice().train(1), extra_iterations=0 if known else 1)


@scenario(data.untuned, PAIRS)
def test_tensorflow_does_not_tune_what_is_read(found):
    for rank in found:
        assert all(set(values) == {False} for values in rank.values())


@scenario(data.short_of_memory, PAIRS)
def test_a_rank_that_looks_into_its_memory_trains_as_the_others(found):
    trained(found, OneDevice().train(1), extra_iterations=0)
    text = "the activations of a batch do not fit the memory of this host: 2 replicas need"
    assert [any(text in said for said in rank["said"]) for rank in found] == [False, True]


@pytest.mark.parametrize("name", data.WITH_NONE)
@scenario(data.targets_that_are_none)
def test_targets_that_are_none_are_left_out(found, name):
    expected = OneDevice().train(1)
    checks.trained(of(found, name), expected, extra_iterations=1)
    for rank in found:
        np.testing.assert_allclose(rank[name]["loss"], expected.history["loss"], **checks.METRICS)
        assert rank["own"].startswith("ValueError: Processes share batches of tensors: leave out")


@scenario(data.steps_across_epochs)
def test_data_without_end_go_on_in_the_next_epoch(found):
    expected = OneDevice()
    for numbers in ((0, 1, 2), (3, 4, 0), (1, 2, 3)):
        expected.epoch([BATCHES[number] for number in numbers])
    trained(found, expected)


@pytest.mark.full
@pytest.mark.parametrize("name", ["arrays", "unknown length", "own shards", "steps"])
@scenario(data.validation)
def test_validation_is_that_of_one_device(found, name):
    expected = OneDevice().train(1)
    checks.trained(of(found, name), expected)
    rows = range(32) if name == "steps" else range(ROWS)
    logs = {**expected.logs[0], **{f"val_{k}": v for k, v in expected.evaluate(rows).items()}}
    for rank in of(found, name):
        checks.metrics(rank["history"], {key: [value] for key, value in logs.items()})


@pytest.mark.full
@pytest.mark.parametrize("name", ["known length", "unknown length"])
@scenario(data.distributed_by_hand)
def test_a_distributed_data_set_is_trained_as_it_is(found, name):
    trained(of(found, name), OneDevice().train(2))


@pytest.mark.full
@pytest.mark.parametrize("name", FIRST)
@scenario(data.own_shards, ALL)
def test_own_shards_are_trained_as_their_union(found, name, devices):
    trained_as_their_union(found, name, devices)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in SHARDS if name not in FIRST])
@scenario(data.more_own_shards, ALL)
def test_own_shards_of_more_kinds_are_trained_as_their_union(found, name, devices):
    trained_as_their_union(found, name, devices)


def trained_as_their_union(found, name, devices):
    expected = OneDevice()
    for steps in SHARDS[name].epochs(len(found), devices):
        expected.epoch(steps)
    trained(of(found, name), expected)


@pytest.mark.full
@pytest.mark.parametrize("name", ["0", "1", "2"])
@scenario(data.own_shards_of_one_model)
def test_one_model_is_trained_on_own_shards_of_known_and_unknown_lengths(found, name):
    expected = OneDevice()
    for steps in SHARDS["known lengths"].epochs(len(found), 1):
        expected.epoch(steps)
    trained(of(found, name), expected)


@scenario(data.own_shards_of_known_and_unknown_length)
def test_a_rank_that_knows_its_length_waits_for_one_that_does_not(found):
    expected = OneDevice().train(2, in_batches(size=8))
    trained(found, expected)


@pytest.mark.full
@scenario(data.sizes_that_divide_evenly_or_not)
def test_ranks_agree_on_sizes_of_which_one_has_seen_its_own(found):
    expected = OneDevice().train(1, BATCHES[:4])
    checks.trained(found, expected)
    for rank in found:
        predictions = expected.errors(range(31)) + Y[:31]
        np.testing.assert_allclose(rank["predictions"], predictions, rtol=1e-5, atol=1e-5)
        for name, rows in (("metrics", 31), ("odd", 45)):
            logs = list(expected.evaluate(range(rows)).values())
            np.testing.assert_allclose(rank[name], logs, **checks.METRICS)
        parts = [(8, 8), (8, 7)]
        counts = [sum(n * n for n in part) / sum(part) for part in parts]
        np.testing.assert_allclose(rank["counts"], counts, **checks.METRICS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("steps", "arguments.steps_per_epoch: 3 in rank 0, 4 in rank 1"),
        ("epochs", "arguments.epochs: 4 in rank 0, 5 in rank 1"),
        ("PyDataset", "batches: 4 in rank 0, 5 in rank 1"),
        ("evaluate", "arguments.steps: 2 in rank 0, 3 in rank 1"),
    ],
)
@scenario(data.runs_of_different_lengths)
def test_runs_of_different_lengths_are_refused_by_all(found, name, message):
    for rank in found:
        assert rank[name].startswith("ValueError: ")
        assert message in rank[name]


@pytest.mark.full
@pytest.mark.parametrize("name", ["known lengths", "unknown lengths"])
@scenario(data.own_shards_with_several_steps_per_execution, ("multi_worker-2", "horovod-2"))
def test_own_shards_with_several_steps_per_execution(found, name, devices):
    expected = OneDevice()
    for steps in SHARDS[name].epochs(len(found), devices):
        expected.epoch(steps)
    trained(of(found, name), expected)


@pytest.mark.full
@pytest.mark.parametrize("name", ["known lengths", "unknown lengths", "a rank without data"])
@scenario(data.own_shards_in_evaluate_and_predict, ALL)
def test_own_shards_are_evaluated_and_predicted_as_their_union(found, name, devices):
    device = OneDevice()
    rows = np.concatenate(SHARDS[name].epochs(len(found), devices)[0])
    for rank in of(found, name):
        checks.metrics(rank["metrics"], device.evaluate(range(ROWS)))
        predictions = device.errors(rows) + Y[rows]
        np.testing.assert_allclose(rank["predictions"], predictions, rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["known lengths", "unknown lengths", "a rank without data"])
@scenario(data.own_data_in_a_loop)
def test_own_shards_in_a_loop_end_with_the_longest(found, name):
    steps = SHARDS[name].epochs(len(found), 1)[0]
    for sums in of(found, name):
        np.testing.assert_allclose(sums, [X[rows].sum(axis=0) for rows in steps], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "received"),
    [
        ("data sets", "batches: 5 in rank 0, 3 in rank 1"),
        ("endless in rank 1", "batches: 5 in rank 0, 'without end' in rank 1"),
        ("unknown in rank 1", "batches: 5 in rank 0, 'unknown' in rank 1"),
        ("types", "types: '(TensorSpec(shape=(None, 4), dtype=tf.float32"),
    ],
)
@scenario(data.refused)
def test_different_data_sets_are_refused_by_all(found, name, received):
    for rank in found:
        assert rank[name].startswith("ValueError: Every process must be given the same global")
        assert "distribute_datasets_from_function" in rank[name]
        assert received in rank[name]


@scenario(data.refused)
def test_arrays_of_different_lengths_are_refused_by_all(found):
    for rank in found:
        assert "'array of shape (67, 4)' in rank 0, 'array of shape (47, 4)'" in rank["arrays"]


@pytest.mark.parametrize("name", ["OFF", "FILE"])
@scenario(data.refused)
def test_other_auto_shard_policies_are_refused(found, name):
    for rank in found:
        assert rank[name].startswith("ValueError: tfdist divides global batches")
        assert rank[name].endswith(f"Received: a data set with auto_shard_policy={name}")


@scenario(data.refused)
def test_empty_data_are_refused_and_training_goes_on_after_errors(found):
    for rank in found:
        assert rank["empty"].startswith("ValueError")
        assert rank["AUTO"] == rank["DATA"] == ""
    checks.trained(found, OneDevice().train(2))


@scenario(data.different_data)
def test_all_ranks_warn_where_they_read_different_data(found):
    for rank in found:
        assert rank["same"] == []
        (message,) = rank["different"]
        assert "The ranks do not read the same data" in message
    checks.equal(found)


@pytest.mark.parametrize("name", ["arrays", "data set", "PyDataset"])
@scenario(data.without_a_seed)
def test_shuffled_data_have_one_order_without_a_seed(found, name):
    for weights in of(found, name):
        np.testing.assert_allclose(weights, [2 / 4] * 20)  # each sample once, in a batch of 4


@scenario(data.without_a_seed)
def test_a_shuffled_data_set_is_shuffled(found):
    first, second = of(found, "order")
    assert first == second
    assert first != sorted(first) == list(range(20))


@scenario(data.seeds_that_differ)
def test_seeds_that_differ_are_refused(found):
    for rank in found:
        assert rank["error"].startswith("ValueError: All ranks must make the same strategies")
        assert "Received: random seed: 0 in rank 0, 1 in rank 1" in rank["error"]
        assert rank["seed"] == 7
