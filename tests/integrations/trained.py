"""What `digits.py` has trained, and what one device trains."""

import os
import pathlib
import subprocess
import sys

import numpy as np

from tests.equivalence.compare import MAX_WEIGHT_DIFFERENCE

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGITS = pathlib.Path(__file__).with_name("digits.py")
SECONDS = 300


def variables(**more):
    """The environment variables of a process that trains."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    return {"PYTHONPATH": path, **quiet, **more}


def train_on_one_device(folder):
    """Trains in one process of its own; returns the weights."""
    command = [sys.executable, str(DIGITS), str(folder)]
    subprocess.run(command, env=os.environ | variables(), check=True, timeout=SECONDS)
    return weights(folder, 1)[0]


def weights(folder, replicas):
    """The weights of each rank."""
    found = []
    for rank in range(replicas):
        with np.load(folder / f"{rank} of {replicas}.npz") as file:
            found.append([file[name] for name in file.files])
    return found


def assert_equal(ranks, expected):
    """Ranks must have the same weights to the bit, and those of one device to 1e-6."""
    for other in ranks[1:]:
        for first, second in zip(ranks[0], other, strict=True):
            np.testing.assert_array_equal(first, second)
    for value, wanted in zip(ranks[0], expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=MAX_WEIGHT_DIFFERENCE)
