"""Compressors that lose nothing, in the step path of every feature: the same as one device."""

import dataclasses

import keras
import pytest

from tests.compression.test_properties import LOSSLESS, name_of
from tests.equivalence import compare
from tests.equivalence.columns import BY_NAME, COMPRESSED
from tests.equivalence.features import FEATURES
from tfdist import _versions
from tfdist.strategies.horovod.backend import is_installed

_KERAS = _versions.release(keras.__version__)
_COLUMN = BY_NAME["mirrored-2"]
_MAX_DIFFERENCE = 1e-5
# PowerSGD's factors travel as float32, so their product has the rounding error of the largest
# element; Adam makes much of the smallest.
_MAX_DIFFERENCE_OF_FACTORS = 2e-5
# Where ReLU leaves gradients of zero, Adam makes steps of what they are rounded to.
_MAX_DIFFERENCES_OF_FACTORS = {"Keras' guide to several devices": 1e-3}
# What a compressor changes in the step path is the same for all of them. So the default suite
# trains one feature that compression has a part in, with a compressor of each way to travel.
_USUAL = "accumulation_steps=3, steps_per_execution=4, remainders"
_WAYS = ("topk", "qsgd", "powersgd")
assert _USUAL in {feature.name for feature in FEATURES}


def _cells():
    for compressor in LOSSLESS:
        chosen = dataclasses.replace(compressor, min_bytes=0)
        for feature in FEATURES:
            if _KERAS < feature.since:
                continue
            usual = feature.name == _USUAL and compressor.name in _WAYS
            yield pytest.param(
                chosen,
                feature,
                marks=[] if usual else [pytest.mark.full],
                id=f"{name_of(compressor)}-{feature.name}",
            )


def _cells_of_processes():
    for column in COMPRESSED:
        marks = [pytest.mark.full, pytest.mark.job]
        if column.strategy == "horovod":
            marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
        for feature in FEATURES:
            if _KERAS >= feature.since:
                yield pytest.param(column, feature, marks=marks, id=f"{column.name}-{feature.name}")


def _assert_equal(ranks, expected, feature, allowed=_MAX_DIFFERENCE):
    for rank in ranks:
        assert compare.weight_difference(rank.outcome, expected) <= allowed
        if feature.history:
            assert compare.history_difference(rank.outcome, expected) <= 10 * allowed
    assert not compare.differing_variables(ranks)


@pytest.mark.filterwarnings("ignore:.*more traffic")
@pytest.mark.parametrize(("compressor", "feature"), list(_cells()))
def test_a_compressor_that_loses_nothing_equals_one_device(compressor, feature, results):
    options = {**feature.options, "compression": compressor}
    found = _COLUMN.train(dataclasses.replace(feature, options=options))
    factors = compressor.name == "powersgd"
    of_factors = _MAX_DIFFERENCES_OF_FACTORS.get(feature.name, _MAX_DIFFERENCE_OF_FACTORS)
    allowed = of_factors if factors else _MAX_DIFFERENCE
    _assert_equal([found], results.reference(feature), feature, allowed)


@pytest.mark.parametrize(("column", "feature"), list(_cells_of_processes()))
def test_it_does_in_several_processes_too(column, feature, results):
    _assert_equal(results.of(column, feature), results.reference(feature), feature)
