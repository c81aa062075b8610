"""Replicas that are grouped by host get what replicas without groups get."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.multi_process import layers
from tests.multi_process.checks import assert_sums_of_gradients
from tests.multi_process.jobs import ON_HOSTS, ON_MORE_HOSTS, scenario
from tests.multi_process.scenarios import hosts
from tests.step.engines import DTYPES

_HALVES = ("fp16", "bf16")


@scenario(hosts.operations, ON_MORE_HOSTS)
def test_operations_give_what_numpy_gives(found):
    for rank in found:
        assert sorted(rank) == sorted(DTYPES)
        for of_dtype in rank.values():
            expected = of_dtype["expected"]
            assert of_dtype["found"]
            for replica in of_dtype["found"]:
                assert sorted(replica) == sorted(expected)
                for name, value in expected.items():
                    assert replica[name].dtype == value.dtype
                    np.testing.assert_array_equal(replica[name], value, err_msg=name)


@scenario(hosts.trained, ON_MORE_HOSTS)
def test_groups_train_what_one_device_trains(found):
    model = layers.model(tf.distribute.get_strategy(), layers.WAYS, optimizer="adam")
    layers.fit(model, batch=20)
    for rank in found:
        groups = {exchange: own["groups"] for exchange, own in rank.items()}
        assert groups == {"auto": rank["auto"]["by default"], "ring": False, "hierarchical": True}
        for exchange in groups:
            own = rank[exchange]
            for of_replica in own["on all replicas"]:
                assert of_replica == found[0][exchange]["on all replicas"][0]
            for ours, theirs in zip(own["weights"], model.get_weights(), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6)


@scenario(hosts.compressed, ON_HOSTS)
def test_a_host_compresses_as_one_replica_does(found):
    assert_as_one_replica_per_host(found, layers.COMPRESSORS)
    assert found[0]["history"]["compression_ratio"] > 1


@pytest.mark.full
@scenario(hosts.momentum, ON_HOSTS)
def test_a_host_has_one_momentum(found):
    assert_as_one_replica_per_host(found, layers.MOMENTUM)


def assert_as_one_replica_per_host(found, compressors):
    """Compares with two replicas, of which each has the samples of one host."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=layers.choice(compressors))
    model = layers.model(strategy, compressors)
    monitor = tfdist.callbacks.CompressionMonitor()
    history = layers.fit(model, callbacks=(monitor,))
    for rank in found:
        assert rank["history"] == found[0]["history"]
        for of_replica in rank["on all replicas"]:
            assert of_replica == found[0]["on all replicas"][0]
        # A sum of two gradients is rounded otherwise than the gradient of all samples, and a half
        # may then be another one. A kernel and a bias of each layer; kernels are compressed.
        close = [t for c in compressors for t in (2e-5 if c.name in _HALVES else 1e-6, 1e-6)]
        for ours, theirs, atol in zip(rank["weights"], model.get_weights(), close, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=atol)
        for name, values in history.items():
            np.testing.assert_allclose(rank["history"][name], values[-1], rtol=1e-4)


@pytest.mark.full
@scenario(hosts.resumed, ON_HOSTS)
def test_a_resumed_training_in_groups_equals_an_uninterrupted_one(found):
    for rank in found:
        assert rank["resumed"] == rank["whole"]
        assert any(np.any(values) for values in rank["whole"]["kept"].values())


@scenario(hosts.from_a_ring, ON_HOSTS)
def test_replicas_that_had_no_groups_before_agree(found):
    """What they had not sent is different on the replicas of a host."""
    for rank in found:
        assert rank["before"] != found[0]["before"] or rank is found[0]
        assert any(np.any(total) for total in rank["sums"]["before"].values())
        for key, total in rank["sums"]["before"].items():
            np.testing.assert_array_equal(rank["sums"]["after"][key], total)
        for of_replica in rank["on all replicas"]:
            assert of_replica == found[0]["on all replicas"][0]


@scenario(hosts.gradients_of_sums, ON_HOSTS)
def test_the_gradient_of_a_sum_in_groups_is_the_sum_of_the_gradients(found):
    assert_sums_of_gradients(found)


@scenario(hosts.of_unknown_shape, ON_HOSTS)
def test_a_gradient_of_unknown_shape_trains_as_on_one_device(found):
    model = keras.Sequential([keras.Input((2,)), hosts.Unknown()])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.zeros((8, 1)), 8, epochs=2, verbose=0)
    for rank in found:
        np.testing.assert_allclose(rank[0], model.get_weights()[0], atol=1e-6)


@scenario(hosts.with_a_state_that_begins_with_ones, ON_HOSTS)
def test_the_first_state_of_a_host_is_that_of_one_replica(found):
    model = layers.model(tf.distribute.get_strategy(), layers.WAYS[:1])
    layers.fit(model, last=1)
    for rank in found:
        for ours, theirs in zip(rank, model.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
