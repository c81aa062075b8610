"""An evaluator beside a real job reads only whole checkpoints, the last one too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.parameter_server.beside_numbers import EPOCHS, RATE, WIDTH

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [".weights.h5", *(pytest.param(k, marks=pytest.mark.full) for k in (".keras", "manager"))],
)
def test_the_evaluator_sees_the_chiefs_weights_until_the_end(tmp_path, kind):
    (tmp_path / "saved").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--ps", "1", "--evaluator"]
    command += ["--timeout", "280", "-m", "tests.parameter_server.beside", str(tmp_path), kind]
    finished = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TFDIST_CONNECT_TIMEOUT": "200"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-5000:]
    trained, found = (
        json.loads((tmp_path / name).read_text()) for name in ("trained", "evaluated")
    )
    updates = 40 * EPOCHS
    assert trained == {"updates": updates, "told": [updates]}
    assert len(found) >= 2  # while the chief trained, and after it
    for one in found:
        assert one["told"] == [one["updates"]]
        loss = -RATE * one["updates"] * WIDTH * (WIDTH + 1)
        assert one["loss"] == pytest.approx(loss, rel=1e-6)
    assert found[0]["updates"] < found[-1]["updates"] == updates
    assert _steps_of_loss(tmp_path / "log" / "validation") == [one["updates"] for one in found]


def _steps_of_loss(folder):
    (path,) = folder.iterdir()
    return [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "evaluation_loss_vs_iterations"
    ]
