"""Compressors that lose nothing, in the step path of every feature: the same as one device."""

import dataclasses

import keras
import pytest

from tests.compression.test_properties import LOSSLESS, name_of
from tests.equivalence import compare
from tests.equivalence.columns import BY_NAME
from tests.equivalence.features import FEATURES, SAMPLE
from tfdist import _versions, compression

_KERAS = _versions.release(keras.__version__)
_COLUMN = BY_NAME["mirrored-2"]
_MAX_DIFFERENCE = 1e-5
# What a compressor changes in the step path is the same for all of them.
_FIRST = compression.TopK(1.0)
_FEW = ("Adam", "accumulation_steps=3, steps_per_execution=4, remainders")


def _cells():
    for compressor in LOSSLESS:
        chosen = compression.get({**compressor.get_config(), "min_bytes": 0})
        for feature in FEATURES:
            if _KERAS < feature.since:
                continue
            usual = feature.name in (SAMPLE if compressor == _FIRST else _FEW)
            yield pytest.param(
                chosen,
                feature,
                marks=[] if usual else [pytest.mark.full],
                id=f"{name_of(compressor)}-{feature.name}",
            )


@pytest.mark.filterwarnings("ignore:.*more traffic")
@pytest.mark.parametrize(("compressor", "feature"), list(_cells()))
def test_a_compressor_that_loses_nothing_equals_one_device(compressor, feature, results):
    options = {**feature.options, "compression": compressor}
    found = _COLUMN.train(dataclasses.replace(feature, options=options))
    expected = results.reference(feature)
    assert compare.weight_difference(found.outcome, expected) <= _MAX_DIFFERENCE
    if feature.history:
        assert compare.history_difference(found.outcome, expected) <= 10 * _MAX_DIFFERENCE
    assert not compare.differing_variables([found])
