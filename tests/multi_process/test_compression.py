"""Compression gives the same with every backend, and goes on where it was interrupted."""

import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.multi_process import layers
from tests.multi_process.jobs import ALL, PAIRS, scenario
from tests.multi_process.scenarios import compression

# What Horovod joins depends on time, and with it the order of the additions of three numbers.
REPEATABLE = tuple(job for job in ALL if job != "horovod-3")


@pytest.fixture
def assert_as_on_devices(shared):
    """Compares the weights of ranks with those of replicas in one process."""

    def assert_as_on_devices(found, compressors, last=4):
        names = ("on devices", str(len(found)), *(c.name for c in compressors), str(last))
        expected = shared.get(names, lambda: on_devices(compressors, len(found), last))
        # A kernel and a bias of each layer. Kernels are compressed.
        close = [tol for c in compressors for tol in (tolerance(c, len(found)), 1e-6)]
        for rank in found:
            for ours, theirs, atol in zip(rank["weights"], expected, close, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=atol)

    return assert_as_on_devices


def tolerance(compressor, replicas):
    """How close weights are: three halves, unlike two, have sums that depend on their order."""
    return 5e-5 if compressor.name in ("fp16", "bf16") and replicas > 2 else 1e-6


def on_devices(compressors, replicas, last):
    """The weights that replicas in one process come to."""
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], compression=layers.choice(compressors))
    model = layers.model(strategy, compressors)
    layers.fit(model, last=last)
    return layers.state(model)["weights"]


def assert_ranks_agree(found):
    for rank in found[1:]:
        assert rank["weights"] == found[0]["weights"]
        assert rank["history"] == found[0]["history"]
    assert found[0]["history"]["compression_ratio"] > 1
    assert found[0]["kept"] != found[1]["kept"]


@pytest.mark.full
@scenario(compression.every_compressor)
def test_every_compressor_gives_what_it_gives_on_devices_of_one_process(
    found, assert_as_on_devices
):
    assert_as_on_devices(found, layers.COMPRESSORS)
    assert_ranks_agree(found)


@pytest.mark.full
@scenario(compression.every_way, ("horovod-2", "multi_worker-3", "horovod-3"))
def test_each_way_to_travel_gives_the_same(found, assert_as_on_devices):
    assert_as_on_devices(found, layers.WAYS, last=1)
    assert_ranks_agree(found)


@pytest.mark.full
@scenario(compression.momentum_before_the_exchange)
def test_momentum_before_the_exchange(found, assert_as_on_devices):
    assert_as_on_devices(found, layers.MOMENTUM)
    assert_ranks_agree(found)


@pytest.mark.full
@pytest.mark.parametrize("way", ["saved by all", "saved by the chief in a callback", "backed up"])
@scenario(compression.resumed)
def test_a_resumed_training_equals_an_uninterrupted_one(found, way):
    for rank in found:
        assert rank[way] == rank["whole"]
        assert any(np.any(values) for values in rank["whole"]["kept"].values())
    assert found[0]["whole"]["kept"] != found[1]["whole"]["kept"]


@pytest.mark.full
@pytest.mark.parametrize("way", ["saved by all", "backed up"])
@scenario(compression.accumulated, REPEATABLE)
def test_a_training_resumed_in_mid_accumulation_equals_an_uninterrupted_one(found, way):
    for rank in found:
        assert rank[way] == rank["whole"]
    assert found[0]["whole"]["kept"] != found[1]["whole"]["kept"]


@pytest.mark.full
@scenario(compression.accumulated, PAIRS)
def test_remainders_of_an_accumulation_are_compressed_as_on_devices_of_one_process(found):
    """With more than two replicas a sum in half precision depends on their order."""
    strategy = tfdist.MirroredStrategy(
        DEVICES[: found[0]["replicas"]],
        compression=layers.choice(layers.ACCUMULATED),
        accumulation_steps=3,
    )
    model = layers.model(strategy, layers.ACCUMULATED, "adam")
    layers.fit(model, batch=6)
    for rank in found:
        for ours, theirs in zip(rank["whole"]["weights"], model.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@scenario(compression.saved_by_callbacks_of_the_chief, PAIRS)
def test_callbacks_of_rank_0_alone_save_what_all_ranks_keep(found):
    for rank in found:
        assert rank["expected"]["1"] != rank["expected"]["2"]
        assert (rank["1"], rank["2"]) == (rank["expected"]["1"], rank["expected"]["2"])
        assert rank["after the callbacks"] == rank["end"] == rank["1"]
        assert "must be in the callbacks of all ranks" in rank["in batches"]
    assert found[0]["1"]["own"] != found[1]["1"]["own"]


@pytest.mark.full
@scenario(compression.saved_while_others_evaluate, PAIRS)
def test_rank_0_alone_saves_what_the_others_have_while_they_evaluate(found):
    assert not any(rank["sent for nothing"] for rank in found)
    assert found[0]["losses"] == found[1]["losses"]
    for rank in found:
        assert rank["before"] == rank["after"] == rank["trained"]
    assert found[0]["before"]["own"] != found[1]["before"]["own"]


@pytest.mark.full
@scenario(compression.saved_while_others_evaluate, PAIRS)
def test_what_others_have_changed_since_the_callbacks_began_is_not_saved(found):
    assert found[0]["error"].startswith("RuntimeError: A callback saves in rank 0 alone")
    assert found[0]["error"].endswith("Received: changes in rank 1")
    assert found[0]["goes on"] == found[1]["goes on"]


@pytest.mark.full
@scenario(compression.saved_after_a_nested_fit, PAIRS)
def test_rank_0_alone_saves_after_a_nested_fit_and_all_go_on_after_an_error(found):
    for rank in found:
        assert rank["saved"] == rank["trained"]
        assert rank["error"] == "ValueError: a callback fails"
    assert found[0]["saved"]["own"] != found[1]["saved"]["own"]


@scenario(compression.failing_to_save, PAIRS)
def test_all_ranks_raise_when_rank_0_cannot_save(found):
    chief, *others = found
    assert chief["no folder"] and "No space left" in chief["full disk"]
    for rank in others:
        for failure in ("no folder", "full disk"):
            assert rank[failure].startswith("RuntimeError: Rank 0 could not save the model.")
        assert "No space left on device" in rank["full disk"]
    for rank in found:
        assert rank["loaded"] == rank["saved"]
    assert found[0]["saved"]["own"] != found[1]["saved"]["own"]


@scenario(compression.saved_while_one_rank_has_nothing_new)
def test_ranks_save_together_though_one_has_nothing_new(found):
    assert [rank["kept"] for rank in found] == [False, True]
