"""Optimizer state and accumulated gradients in parts: training equals one device."""

import keras
import pytest

from tests.equivalence import compare
from tests.equivalence.columns import SHARDED
from tests.equivalence.features import FEATURES
from tfdist import _versions
from tfdist.strategies.horovod.backend import is_installed

_KERAS = _versions.release(keras.__version__)
_USUAL = {
    "mirrored-2-sharded": (
        "Lamb",
        "MultiOptimizer in a LossScaleOptimizer",
        "ModelCheckpoint",
        "two optimizers (GAN)",
    ),
    "mirrored-3-sharded": (
        "accumulation_steps=3, steps_per_execution=4, remainders",
        "last batch of 1 sample",
        "synchronized BatchNormalization, last batch of 3",
    ),
}


def _cells():
    for column in SHARDED:
        for feature in FEATURES:
            if _KERAS < feature.since:
                continue
            usual = feature.name in _USUAL.get(column.name, ())
            marks = [] if usual else [pytest.mark.full]
            if column.in_own_processes:
                marks.append(pytest.mark.job)
            if column.strategy == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            yield pytest.param(column, feature, marks=marks, id=f"{column.name}-{feature.name}")


@pytest.mark.parametrize(("column", "feature"), list(_cells()))
def test_sharded_training_equals_one_device(column, feature, results):
    ranks = results.of(column, feature)
    refusal = column.refusal(feature)
    if refusal:
        assert refusal in ranks[0].refused
        return
    problems = compare.problems(ranks, results.reference(feature), None, history=feature.history)
    assert not problems, "\n".join(problems)
