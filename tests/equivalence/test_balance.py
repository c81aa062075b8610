"""Parts of batches whose sizes change after every step: training equals one device."""

import keras
import pytest

from tests.equivalence import compare
from tests.equivalence.columns import BALANCED
from tests.equivalence.features import FEATURES
from tfdist import _versions
from tfdist.strategies.horovod.backend import is_installed

_KERAS = _versions.release(keras.__version__)
# Single batches, which Keras does not distribute, have even parts.
_NOT_CUT = ("train_on_batch, test_on_batch, predict_on_batch",)
# Losses, statistics, counters and results that depend on who has how many samples.
_USUAL = {
    "mirrored-3-balance": (
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "last batch of 1 sample",
        "masked mean by hand, last batch of 3",
        "run_eagerly",
        "synchronized BatchNormalization, last batch of 3",
    ),
}


def _cells():
    for column in BALANCED:
        for feature in FEATURES:
            if _KERAS < feature.since or feature.name in _NOT_CUT:
                continue
            usual = feature.name in _USUAL.get(column.name, ())
            marks = [] if usual else [pytest.mark.full]
            if column.in_own_processes:
                marks.append(pytest.mark.job)
            if column.strategy == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            yield pytest.param(column, feature, marks=marks, id=f"{column.name}-{feature.name}")


@pytest.mark.parametrize(("column", "feature"), list(_cells()))
def test_training_with_moving_shares_equals_one_device(column, feature, results):
    ranks = results.of(column, feature)
    problems = compare.problems(ranks, results.reference(feature), None, history=feature.history)
    assert not problems, "\n".join(problems)
