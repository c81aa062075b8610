"""Every feature in every column against one device."""

import keras
import pytest

from tests.equivalence import compare
from tests.equivalence.columns import BY_NAME, COLUMNS
from tests.equivalence.features import FEATURES, VARIATIONS
from tfdist import _versions
from tfdist.strategies.horovod.backend import is_installed

_KERAS = _versions.release(keras.__version__)


def _cells():
    for column in COLUMNS:
        for feature in FEATURES:
            if _KERAS < feature.since:
                continue  # Keras' own part in it is wrong there
            marks = []
            usual = column.complete and feature.name not in VARIATIONS
            if not (usual or feature.name in column.sample):
                marks.append(pytest.mark.full)
            if column.in_own_processes:
                marks.append(pytest.mark.job)
            if column.strategy == "horovod":
                marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
            yield pytest.param(column, feature, marks=marks, id=f"{column.name}-{feature.name}")


@pytest.mark.parametrize(("column", "feature"), list(_cells()))
def test_training_equals_one_device(column, feature, results, record_property):
    record_property("column", column.name)
    record_property("feature", feature.name)
    ranks = results.of(column, feature)
    refusal = column.refusal(feature)
    if refusal:
        record_property("refused", "yes")
        assert refusal in ranks[0].refused
        return
    expected = results.reference(feature)
    twin = None
    if column.twin:
        twin = results.of(BY_NAME[column.twin], feature)[0].outcome
        record_property("twin_difference", compare.weight_difference(ranks[0].outcome, twin))
    record_property("weight_difference", compare.weight_difference(ranks[0].outcome, expected))
    problems = compare.problems(ranks, expected, twin, history=feature.history)
    assert not problems, "\n".join(problems)
