"""Files that one job writes and another one reads, and the memory of the rank that writes."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.sharding import rank
from tfdist.strategies.horovod.backend import is_installed

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _run(ranks, strategy, *arguments):
    command = [sys.executable, "-m", "tfdist", "run", "-n", str(ranks), "--strategy", strategy]
    environ = {**os.environ, "PYTHONPATH": str(_ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    program = [str(_ROOT / "tests" / "sharding" / "rank.py"), strategy, *map(str, arguments)]
    job = subprocess.run([*command, *program], env=environ, capture_output=True, timeout=300)
    assert job.returncode == 0, (job.stdout + job.stderr).decode()[-4000:]


@pytest.mark.full
@pytest.mark.skipif(not is_installed(), reason="make horovod")
@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ((2, "horovod", "parameters"), (3, "multi_worker", "parameters")),
        ((2, "multi_worker", "gradients"), (3, "horovod", "optimizer")),
    ],
)
def test_another_job_goes_on_from_a_file(writer, reader, tmp_path):
    _run(*writer, tmp_path, "write")
    _run(*reader, tmp_path, "read")
    alone = tfdist.MirroredStrategy(DEVICES[:1], accumulation_steps=rank.STEPS)
    expected = rank.model_in(alone)
    rank.train(expected)  # twice, as the averages become the weights at the end of each `fit`
    rank.train(expected, rank.EPOCHS, 2 * rank.EPOCHS)
    for number in range(reader[0]):
        with np.load(tmp_path / f"weights-{number}.npz") as file:
            found = [file[name] for name in file.files]
        for one, other in zip(found, expected.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    for number in range(writer[0]):
        peak, largest = np.load(tmp_path / f"peak-{number}.npy")
        assert peak < 4 * largest  # of 8 layers, and 16 slots
