"""What workers push, compressed: the same as between replicas, in as many bytes as stated."""

import shutil

import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.parameter_server import push_scenarios
from tfdist import compression

# Bytes beside the payloads that a worker sends in a step: logs, answers to calls, headers.
_OVERHEAD = 4000


pytestmark = pytest.mark.xdist_group("parameter_server")


def _counted():
    for compressor in push_scenarios.COUNTED:
        yield pytest.param(compressor.name, marks=pytest.mark.scenario("push_bytes"))
    for compressor in push_scenarios.MORE_COUNTED:
        marks = [pytest.mark.scenario("push_more_bytes"), pytest.mark.full]
        yield pytest.param(compressor.name, marks=marks)


@pytest.mark.filterwarnings("ignore:.*more traffic")
@pytest.mark.full
@pytest.mark.parametrize("name", push_scenarios.SYNCHRONOUS)
@pytest.mark.scenario("push_synchronous")
def test_synchronous_training_equals_that_of_replicas(found, name):
    options = push_scenarios.SYNCHRONOUS[name]
    expected = push_scenarios.trained(tfdist.MirroredStrategy(DEVICES[:2], **options))
    for weights, others in zip(found[name], expected, strict=True):
        np.testing.assert_allclose(weights, others, rtol=0, atol=1e-6)


@pytest.mark.scenario("push_partitioned")
def test_parts_of_variables_are_compressed(found):
    expected = push_scenarios.trained(tfdist.MirroredStrategy(DEVICES[:2]))
    for weights, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(weights, others, rtol=0, atol=1e-5)


@pytest.mark.scenario("pull_partitioned")
def test_parts_of_variables_are_pulled_compressed(found):
    for weights, others in zip(*found, strict=True):
        np.testing.assert_allclose(weights, others, rtol=0, atol=1e-6)


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss (iproute2)")
@pytest.mark.parametrize("name", list(_counted()))
def test_only_payloads_travel(found, name):
    sent, stated = found[name]
    assert stated <= sent <= 1.01 * stated + _OVERHEAD


@pytest.mark.scenario("push_kept")
def test_what_is_unsent_is_sent_with_the_next_gradient_once_the_first_is_used(found):
    assert found["first"] == found["not used, and repeated"] == [0, 0, 0, 4]
    assert found["used"] == [0, 0, 6, 0]


@pytest.mark.scenario("push_kept")
def test_each_sender_has_a_state_of_its_own_which_follows_it(found):
    assert found["of another sender"] == [0, 0, 0, 4]
    assert found["on another worker"] == found["used"]


@pytest.mark.scenario("push_kept")
def test_what_is_unsent_is_lost_with_the_worker_that_has_it(found):
    assert found["on that worker, which is not lost"] == [0, 0, 0, 8]
    assert found["lost"] == found["lost, and repeated"] == found["first"]
    assert found["after the loss"] == found["used"]
    assert found["taken as lost"] == found["first"]
    assert found["begun anew"] == [True, True, False, True]
    assert found["log"] == ["tfdist: what compression had left unsent on worker 1 is lost."]


def test_a_momentum_of_micro_batches_is_refused():
    with pytest.raises(ValueError, match="each micro-batch is sent by itself"):
        tfdist.ParameterServerStrategy(
            staleness=tfdist.staleness.Synchronous(),
            compression=compression.DGC(),
            accumulation_steps=2,
        )


@pytest.mark.scenario("push_overflow")
def test_what_overflows_is_not_kept(found):
    scale, weights, updates = found
    assert scale < 2.0**24
    assert updates > 0
    assert all(np.isfinite(value).all() for value in weights)
