"""Weights in parts begin with the values of one device, and as parts."""

import os
import pathlib
import subprocess
import sys
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import compat
from tfdist.step.sharding.parts import Parts

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_of = keras.initializers
_DTYPES = ("float32", "float64", "float16", "bfloat16")
_SHAPES = ((7, 3), (2, 9), (1, 50), (2, 3, 1, 5))
# Its parts are so large that they are computed in a function. Tried with each kind of numbers.
_LARGE = (1001, 2003)
_KINDS = ("uniform", "normal", "glorot_normal", "constant")

# What computes parts alone, given a seed.
IN_PARTS = {
    "uniform": lambda seed: _of.RandomUniform(-1, 3, seed=seed),
    "normal": lambda seed: _of.RandomNormal(1, 2, seed=seed),
    "truncated": lambda seed: _of.TruncatedNormal(seed=seed),
    "glorot_uniform": lambda seed: _of.GlorotUniform(seed=seed),
    "glorot_normal": lambda seed: _of.GlorotNormal(seed=seed),
    "he_uniform": lambda seed: _of.HeUniform(seed=seed),
    "he_normal": lambda seed: _of.HeNormal(seed=seed),
    "lecun_uniform": lambda seed: _of.LecunUniform(seed=seed),
    "lecun_normal": lambda seed: _of.LecunNormal(seed=seed),
    "untruncated": lambda seed: _of.VarianceScaling(
        2.0, "fan_avg", "untruncated_normal", seed=seed
    ),
    "zeros": lambda seed: _of.Zeros(),
    "ones": lambda seed: _of.Ones(),
    "constant": lambda seed: _of.Constant(2.7),
}


class _Shifted(_of.RandomUniform):
    def __call__(self, shape, dtype=None):
        return super().__call__(shape, dtype) + tf.cast(shape[0], dtype)


def _numbered(shape, dtype=None):
    return tf.cast(tf.reshape(tf.range(shape[0] * shape[1]), shape), dtype)


# What does not, for matrices of five columns.
WHOLE = {
    "orthogonal": lambda seed: _of.Orthogonal(seed=seed),
    "identity": lambda seed: _of.Identity(),
    "subclass": lambda seed: _Shifted(seed=seed),
    "function": lambda seed: _numbered,
    "means of columns": lambda seed: _of.RandomNormal(np.arange(5, dtype="float32"), seed=seed),
    "constants of columns": lambda seed: _of.Constant(np.arange(5.0)),
}


def _bits(make, shape, dtype, strategy=None):
    """The bits of a weight, and of the next one that draws a seed from the same generator."""
    seeds = keras.random.SeedGenerator(6)
    with strategy.scope() if strategy else tf.init_scope():
        weights = [keras.Variable(make(seeds), shape=shape, dtype=dtype)]
        weights.append(keras.Variable(_of.RandomUniform(seed=seeds), shape=(4, 3)))
    assert [compat.is_sharded(weight) for weight in weights] == [strategy is not None] * 2
    return [weight.numpy().tobytes() for weight in weights]


@pytest.fixture
def cuts():
    """The weights that were whole before they were cut."""
    with mock.patch.object(Parts, "kept_part", autospec=True, side_effect=Parts.kept_part) as cut:
        yield cut


def _strategy(replicas):
    return tfdist.MirroredStrategy(DEVICES[:replicas], sharding="parameters")


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("name", IN_PARTS)
def test_parts_are_computed_alone(name, dtype, cuts):
    strategies = [_strategy(replicas) for replicas in (2, 3)]
    for shape in (*_SHAPES, *[_LARGE][: name in _KINDS]):
        expected = _bits(IN_PARTS[name], shape, dtype)
        for strategy in strategies:
            assert _bits(IN_PARTS[name], shape, dtype, strategy) == expected, shape
    cuts.assert_not_called()


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_the_whole_weight_computes_it(name, cuts):
    assert _bits(WHOLE[name], (7, 5), "float32", _strategy(2)) == _bits(
        WHOLE[name], (7, 5), "float32"
    )
    assert cuts.call_count == 2


def test_a_seed_of_its_own_gives_the_same_numbers_each_time():
    initializer = _of.GlorotUniform(seed=3)
    with _strategy(3).scope():
        first, second = (keras.Variable(initializer, shape=(7, 5)) for _ in range(2))
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    np.testing.assert_array_equal(first.numpy(), initializer((7, 5)))


_BUILD = """
import gc, pathlib
import keras, tfdist
from benchmarks.common.process import resident

devices = tfdist.testing.virtual_devices(4)
strategy = tfdist.MirroredStrategy(devices, sharding="parameters")
rows, columns = 4096, 8192

def build(rows, columns):
    with strategy.scope():
        return keras.Variable(keras.initializers.GlorotUniform(), shape=(rows, columns))

build(64, 64)
gc.collect()
idle = resident("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
weight = build(rows, columns)
print((resident("VmHWM") - idle) / (4 * rows * columns))
"""


@pytest.mark.job
def test_no_whole_weight_is_in_memory():
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    # Memory that is free goes back to the system at once.
    options = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "MALLOC_MMAP_MAX_": "1000000"}
    done = subprocess.run(
        [sys.executable, "-c", _BUILD],
        cwd=_ROOT,
        env={**os.environ, **options},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    peak = float(done.stdout.splitlines()[-1])
    # All four parts are in this process. A fourth of them is computed at a time, which takes twice
    # its memory. A whole weight before they are cut would be one more weight.
    assert 1.0 <= peak < 1.75
