"""Ranks that have one sample of each batch."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import samples


@pytest.mark.full
@scenario(samples.one_each, ("multi_worker-2", "horovod-2", "multi_worker-2x2"))
def test_ranks_of_one_sample_train_as_one_device(found):
    expected = samples.weights(tf.distribute.get_strategy(), found[0]["batch"])
    for rank in found:
        for ours, theirs in zip(rank["weights"], expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
