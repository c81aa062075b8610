"""The features that `tfdist test` trains with equal one device, for any number of replicas."""

import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tfdist.checkup import equality, features


@pytest.mark.parametrize("feature", features.ALL, ids=lambda feature: feature.name)
def test_training_equals_one_device(feature):
    strategy = tfdist.MirroredStrategy(DEVICES[:4], **feature.options)
    found = equality.train(feature, 4, strategy)
    off = equality.difference(found, equality.train(feature, 4))
    # Far below, so that no cluster is accused because of rounding.
    assert off < feature.tolerance / 2


def test_there_are_eight():
    assert len({feature.name for feature in features.ALL}) == 8


def test_compression_rounds():
    feature = features.ALL[-1]
    strategy = tfdist.MirroredStrategy(DEVICES[:2], **feature.options)
    found = equality.train(feature, 2, strategy)
    assert equality.difference(found, equality.train(feature, 2)) > features.EXACT


@pytest.mark.parametrize("value", [np.nan, np.inf, 2000.0])
def test_numbers_that_are_not_finite_are_different(value):
    assert equality.difference([np.array([value, 0.0])], [np.zeros(2)]) == 1000.0
