"""The callbacks in two real processes, which Horovod and TensorFlow's collectives connect."""

import numpy as np
import pytest

import tfdist
from tests.callbacks import ranks, starting
from tests.devices import DEVICES


def _param(strategy):
    return pytest.param(strategy, marks=[pytest.mark.xdist_group(strategy), pytest.mark.full])


@pytest.fixture(scope="module", params=map(_param, starting.STRATEGIES))
def found(request, tmp_path_factory):
    """What the two ranks found out, by the function of `ranks` that did it."""
    directory = tmp_path_factory.mktemp("ranks")
    first, second = starting.results(request.param, "tests.callbacks.ranks", directory)
    return {name: (first[name], second[name]) for name in first}


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_gives_all_ranks_the_weights_and_the_optimizer_of_the_root(found, root):
    by_rank = found["broadcast"]
    kernel, bias, iterations, rate, *momentum = by_rank[root][f"before {root}"]
    assert by_rank[0][f"before {root}"] != by_rank[1][f"before {root}"]
    step = 0.0625 * (root + 1)
    for after in (ranks_found[f"after {root}"] for ranks_found in by_rank):
        np.testing.assert_allclose(after[0], np.add(kernel, step), atol=1e-6)
        np.testing.assert_allclose(after[1], np.add(bias, step), atol=1e-6)
        assert after[2:] == [iterations + 1, rate, *momentum]
    assert by_rank[0][f"after {root}"] == by_rank[1][f"after {root}"]


def test_broadcast_leaves_each_rank_its_own_accumulated_gradients(found):
    for without, with_broadcast in found["broadcast_while_accumulating"]:
        assert without[2] == 3  # updates: the second of two runs completes the half of the first
        assert with_broadcast == without


def test_broadcast_of_equal_variables_sends_their_checksums_only(found):
    variables = 2 + 4  # of the model and of SGD
    assert found["broadcast_of_equal_variables"] == ([variables], [variables])


def test_without_broadcast_weights_that_differ_are_refused(found):
    for messages in found["refused"]:
        assert messages[0].startswith("RuntimeError: The ranks' weights")


def test_a_root_that_does_not_exist_is_refused(found):
    for messages in found["refused"]:
        assert messages[1].startswith("ValueError: `root_rank` must be the rank of a process.")
        assert messages[1].endswith("Received: root_rank=2 with 2 process(es)")


def test_logs_of_one_rank_are_averaged_everywhere(found):
    for rank, result in enumerate(found["metric_average"]):
        after = result["after"]
        assert (after["mine"], after["also_mine"], after["both"]) == (1.5, 0.5, 0.1)
        assert (after["only_0"], after["only_1"]) == (7, 8)
        assert after["vector"] == [0.5, 1.0, -1.0]  # -1 stands for NaN
        assert after["text"] == f"rank {rank}"
        assert after["text_or_number"] == ("none" if rank else 5.0)
        assert result["history"] == [1.5]


def test_losses_and_metrics_stay_the_same_to_the_bit(found):
    first, second = found["metric_average"]
    assert sorted(first["before"]) == ["loss", "mae", "val_loss", "val_mae"]
    assert first["before"] == first["same"] == second["before"] == second["same"]


def test_warmup_is_that_of_one_process_with_two_replicas(found):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    model = ranks.model_of(strategy, rate=0.08)
    ranks.fit(model, tfdist.callbacks.LearningRateWarmup(0.08, warmup_epochs=2), epochs=3)
    first, second = found["warmup"]
    assert first["weights"] == second["weights"]
    for of_ranks, here in zip(first["weights"], ranks.weights_of(model)):
        np.testing.assert_allclose(of_ranks, here, atol=1e-6)


def test_warmup_sets_the_same_rates_on_all_ranks(found):
    expected = [0.045, 0.05, 0.055, 0.06, 0.065, 0.07, 0.075, 0.08] + [0.08] * 4
    for result in found["warmup"]:
        np.testing.assert_allclose(result["rates"], expected, rtol=1e-6)


def test_warmup_does_not_make_the_ranks_agree_in_every_batch(found):
    for result in found["warmup"]:
        assert result["sent"] < 32
