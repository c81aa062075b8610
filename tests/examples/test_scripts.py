"""The example scripts as a user runs them: in a process of their own, from any directory."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import matplotlib.image
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-6


def run(script, *options, cwd, launch=()):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    environment["PYTHONIOENCODING"] = "utf-8"
    return subprocess.run(
        [sys.executable, *launch, str(ROOT / "examples" / script), *options],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


def printed(pattern, result):
    """The number that `pattern` catches in what a successful run printed."""
    assert result.returncode == 0, result.stderr[-3000:]
    found = re.search(pattern, result.stdout)
    assert found, result.stdout[-3000:]
    return float(found.group(1))


def check_history(out, epochs):
    with open(out / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(epochs))
    for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
        assert all(np.isfinite(float(row[name])) for row in rows)


def check_picture(out):
    picture = matplotlib.image.imread(out / "learning_curves.png")
    assert picture.shape[0] > 300 and picture.shape[1] > 800
    assert picture[..., :3].std() > 0.05


def predictions(out, inputs):
    model = keras.saving.load_model(out / "model.keras")
    return np.asarray(model.predict(inputs, verbose=0))


@pytest.mark.full
def test_digits_defaults_reach_98_percent(tmp_path):
    result = run("digits.py", cwd=tmp_path)
    assert printed(r"test accuracy: ([\d.]+)", result) >= 0.98
    assert printed(r"throughput: (\d+) samples/s", result) > 0
    assert "strategy: MirroredStrategy on 1 device(s): CPU:0" in result.stdout
    assert "Epoch 30/30" in result.stdout
    out = tmp_path / "out" / "digits"
    check_history(out, epochs=30)
    check_picture(out)


@pytest.mark.full
def test_digits_on_two_devices_equal_one(tmp_path):
    options = "--strategy mirrored --devices 2 --epochs 1 --compare --out here".split()
    result = run("digits.py", *options, cwd=tmp_path)
    assert printed(r"compare: max \|Δw\| = (\S+) after 20 updates", result) <= TOLERANCE
    assert "strategy: MirroredStrategy on 2 device(s): CPU:0, CPU:1" in result.stdout
    check_history(tmp_path / "here", epochs=1)
    check_picture(tmp_path / "here")
    probabilities = predictions(tmp_path / "here", np.zeros((3, 8, 8, 1), "float32"))
    np.testing.assert_allclose(probabilities.sum(-1), np.ones(3), atol=1e-5)


@pytest.mark.full
def test_digits_in_two_processes_report_once(tmp_path):
    options = "--epochs 1 --compare --out here".split()
    launch = ["-m", "tfdist", "run", "-n", "2", "--timeout", "300"]
    result = run("digits.py", *options, cwd=tmp_path, launch=launch)
    assert result.returncode == 0, result.stderr
    assert printed(r"compare: max \|Δw\| = (\S+) after 20 updates", result) <= TOLERANCE
    lines = result.stdout.splitlines()
    for start in ("strategy: ", "throughput: ", "test accuracy: ", "results: ", "compare: "):
        assert sum(start in line for line in lines) == 1, start
    name = "MultiWorkerMirroredStrategy"
    assert f"strategy: {name} on 2 device(s): CPU:0 in each of 2 processes" in lines
    check_history(tmp_path / "here", epochs=1)
    check_picture(tmp_path / "here")


@pytest.mark.full
def test_digits_with_accumulation_equal_one_large_batch(tmp_path):
    options = "--devices 2 --accumulation-steps 2 --epochs 1 --compare --out here".split()
    result = run("digits.py", *options, cwd=tmp_path)
    assert printed(r"compare: max \|Δw\| = (\S+) after 20 updates", result) <= TOLERANCE
    assert "20 updates of 32 x 2 samples" in result.stdout
    assert predictions(tmp_path / "here", np.zeros((3, 8, 8, 1), "float32")).shape == (3, 10)


@pytest.mark.full
def test_char_lm_on_two_devices_equals_one(tmp_path):
    options = "--devices 2 --epochs 2 --steps-per-epoch 5 --global-batch-size 8 --compare".split()
    result = run("char_lm.py", *options, cwd=tmp_path)
    assert printed(r"compare: max \|Δw\| = (\S+) after 20 updates", result) <= TOLERANCE
    assert 1 < printed(r"trigram model: ([\d.]+) bits per character", result) < 4
    assert 1 < printed(r"held-out loss: ([\d.]+) bits per character", result) < 7
    assert "sample:\ndef " in result.stdout
    assert "strategy: MirroredStrategy on 2 device(s): CPU:0, CPU:1" in result.stdout
    out = tmp_path / "out" / "char_lm"
    check_history(out, epochs=2)
    check_picture(out)
    assert predictions(out, np.zeros((2, 128), "int32")).shape == (2, 128, 97)


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("digits.py", "--devices 0", "argument --devices: must be an integer >= 1. Received: '0'"),
        pytest.param(
            "digits.py",
            "--strategy none --devices 2",
            "--strategy none takes neither --devices",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "char_lm.py",
            "--steps-per-epoch x",
            "--steps-per-epoch: must be an integer >= 1.",
            marks=pytest.mark.full,
        ),
    ],
)
def test_bad_options_give_one_clear_line(script, options, message, tmp_path):
    result = run(script, *options.split(), cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
