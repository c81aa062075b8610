"""Every feature on 1, 2, 3 and 4 replicas against one device."""

import keras
import pytest

from tests.conftest import DEVICES
from tests.equivalence import harness
from tests.equivalence.features import FEATURES
from tfdist import _versions


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(feature, marks=pytest.mark.xdist_group(feature.name), id=feature.name)
        for feature in FEATURES
    ],
)
def test_training_equals_one_device(feature, replicas, record_property):
    if _versions.release(keras.__version__) < feature.since:
        pytest.skip(f"needs Keras {feature.since}: {feature.note or 'fails on one device before'}")
    strategy = harness.mirrored(feature, DEVICES[:replicas])
    expected = harness.reference(feature)
    outcome, model = harness.train(feature, strategy)
    difference = harness.weight_difference(outcome, expected)
    record_property("feature", feature.name)
    record_property("weight_difference", difference)
    assert difference <= harness.MAX_WEIGHT_DIFFERENCE
    if feature.history:
        assert harness.history_difference(outcome, expected) <= harness.MAX_HISTORY_DIFFERENCE
    harness.assert_replicas_identical(model, strategy)
