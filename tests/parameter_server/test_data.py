"""Which batches make an epoch of training, on real servers in one process."""

import numpy as np
import pytest

from tests.parameter_server.data_scenarios import ROWS

pytestmark = pytest.mark.xdist_group("parameter_server")


def ordered(epoch):
    return sorted(map(tuple, epoch))


@pytest.mark.parametrize(
    "kind", ["static, arrays", "dynamic, arrays", "static, shuffled", "own pipelines"]
)
@pytest.mark.scenario("data_orders")
def test_each_epoch_has_each_sample_once_and_an_order_of_its_own(found, kind):
    for epoch in found[kind]:
        assert sorted(sum(epoch, [])) == [*range(ROWS)]
    first, second = map(ordered, found[kind])
    assert first != second


@pytest.mark.scenario("data_shares")
def test_a_slow_worker_has_its_share_of_endless_data(found):
    for epoch in found:
        assert sorted(sum(epoch, [])) == [*range(ROWS)]


@pytest.mark.full
@pytest.mark.scenario("data_synchronous")
def test_synchronous_training_is_the_same_if_a_callback_predicts(found):
    (plain, updates), (predicting, those) = found[False], found[True]
    assert updates == those == 10
    for one, other in zip(plain, predicting):
        np.testing.assert_array_equal(one, other)
