"""virtual_devices in processes of its own: it must come before TensorFlow starts."""

import subprocess
import sys

import pytest

import tfdist


def _run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_makes_devices_that_a_strategy_uses():
    code = """
import tfdist
names = tfdist.testing.virtual_devices(3)
print(names, tfdist.MirroredStrategy(names).num_replicas_in_sync)
"""
    assert "['CPU:0', 'CPU:1', 'CPU:2'] 3" in _run(code).stdout


def test_too_late_is_a_clear_error():
    code = """
import tensorflow as tf, tfdist
tf.constant(1)
tfdist.testing.virtual_devices(2)
"""
    finished = _run(code)
    assert finished.returncode != 0
    assert "TensorFlow is initialized already" in finished.stderr
    assert "Received: count=2, and TensorFlow has 1 CPU device(s)" in finished.stderr


def test_asking_again_for_as_many_is_fine():
    assert tfdist.testing.virtual_devices(2) == ["CPU:0", "CPU:1"]


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_count_is_checked(count):
    with pytest.raises(ValueError, match="integer >= 1. Received"):
        tfdist.testing.virtual_devices(count)
