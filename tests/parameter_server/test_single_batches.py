"""Keras' methods for a single batch."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("parameter_server")

BEFORE = [
    "nothing",
    "predict",
    "evaluate",
    "fit, validated",
    "fit, predicting",
    "compile, several steps per call",
]


@pytest.mark.full
@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.scenario("single_batches")
def test_a_single_batch_gives_what_a_whole_run_gives(found, name):
    for single in ("before", "after"):
        for one, other in zip(found[name][single], found[name]["whole"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.scenario("single_batches")
def test_training_on_a_single_batch_is_refused(found, name):
    assert "trained with `fit`" in found[name]["train_on_batch"]
    assert "Received: a call of train_on_batch" in found[name]["train_on_batch"]
