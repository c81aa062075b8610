"""Equal objects have equal descriptions; what matters in others differs, and where is named."""

import functools

import keras
import numpy as np
import pytest

from tfdist.processes import digest
from tfdist.processes.describe import plain
from tfdist.processes.meeting import differences


def _scaled(factor):
    return lambda y, p: factor * (y - p)


class _Own:
    def __init__(self, size):
        self.size = size

    def get_config(self):
        return {"size": self.size}


PAIRS = {
    "numbers": (1.0, 2.0),
    "arrays": (np.zeros(100), np.ones(100)),
    "functions": (_scaled(1), _scaled(2)),
    "code": (lambda x: x + 1, lambda x: x - 1),
    "partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "configurations": (_Own(1), _Own(2)),
    "settings that Keras leaves out": (keras.losses.Huber(1.0), keras.losses.Huber(2.0)),
    "classes": (keras.losses.Huber, keras.losses.LogCosh),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_matters_is_described(name):
    first, second = PAIRS[name]
    assert plain(first) == plain(first)
    assert plain(first) != plain(second)


def test_addresses_are_not_described():
    first, second = object(), object()
    assert plain([first, _scaled(first)]) == plain([second, _scaled(second)])
    assert plain({first: repr(first)}) == plain({second: repr(second)})


def test_paths_of_files_are_not_described():
    assert plain(_Own("/data/rank-0/words.txt")) == plain(_Own("/data/rank-1/words.txt"))


def _model(activation="relu", swapped=False):
    one, two = keras.Input((4,)), keras.Input((4,))
    parts = [keras.layers.Dense(4, activation)(one), keras.layers.Dense(4)(two)]
    return keras.Model([one, two], keras.layers.Subtract()(parts[::-1] if swapped else parts))


def test_names_that_keras_counts_up_make_no_difference():
    first, second = _model(), _model()
    assert first.layers[-1].name != second.layers[-1].name
    assert digest.of_model(first) == digest.of_model(second)


@pytest.mark.parametrize("options", [{"activation": "tanh"}, {"swapped": True}])
def test_models_that_differ_have_other_descriptions(options):
    assert digest.of_model(_model()) != digest.of_model(_model(**options))


def test_differences_are_named():
    trees = [{"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": [1, 3]}}]
    assert list(differences(trees)) == [("a.b[1]", [2, 3]), ("c", [1, "nothing"])]
