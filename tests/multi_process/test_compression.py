"""Compression gives the same with every backend, and goes on where it was interrupted."""

import numpy as np
import pytest

import tfdist
from tests.conftest import DEVICES
from tests.multi_process import layers
from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import compression


@pytest.fixture(scope="module")
def two_devices():
    """The weights that two replicas in one process come to."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=layers.choice(layers.COMPRESSORS))
    model = layers.model(strategy, layers.COMPRESSORS)
    layers.fit(model)
    return layers.state(model)["weights"]


@scenario(compression.every_compressor)
def test_every_compressor_gives_what_it_gives_on_devices_of_one_process(found, two_devices):
    for rank in found:
        for ours, theirs in zip(rank["weights"], two_devices, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@scenario(compression.every_compressor)
def test_all_ranks_have_the_same_bits_and_see_the_same_measurement(found):
    for rank in found[1:]:
        assert rank["weights"] == found[0]["weights"]
        assert rank["history"] == found[0]["history"]
    assert found[0]["history"]["compression_ratio"] > 1
    assert found[0]["kept"] != found[1]["kept"]


@pytest.mark.parametrize("way", ["saved by all", "saved by the chief in a callback", "backed up"])
@scenario(compression.resumed)
def test_a_resumed_training_equals_an_uninterrupted_one(found, way):
    for rank in found:
        assert rank[way] == rank["whole"]
        assert any(np.any(values) for values in rank["whole"]["kept"].values())
    assert found[0]["whole"]["kept"] != found[1]["whole"]["kept"]


@scenario(compression.saved_while_one_rank_has_nothing_new)
def test_ranks_save_together_though_one_has_nothing_new(found):
    assert [rank["kept"] for rank in found] == [False, True]
