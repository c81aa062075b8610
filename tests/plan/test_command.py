"""`tfdist plan` as users call it."""

import json
import os
import subprocess
import sys

import keras
import pytest

from tests.cli.launching import python_path
from tfdist.cli.main import main

SCRIPT = """\
import os, sys
import keras, numpy as np, tfdist

print("this comes before fit")
os.system("echo this comes from a program")
strategy = tfdist.Strategy("auto")
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(64), keras.layers.Dense(int(sys.argv[1]))]
    )
    model.compile(keras.optimizers.Adam(), "mse")
x, y = np.zeros((96, 20)), np.zeros((96, int(sys.argv[1])))
model.fit(x, y, batch_size=24)
print("this trains")
"""


def run(*arguments, first="."):
    command = [sys.executable, "-m", "tfdist", "plan", *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": python_path(first)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def saved(tmp_path):
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def test_a_script_is_planned_up_to_its_first_fit(script, tmp_path):
    link = {"latency_seconds": 1e-4, "bandwidth_bytes_per_second": 1e8}
    cluster = tmp_path / "test.json"
    cluster.write_text(json.dumps({"ranks": 6, "ranks_per_host": 2, "link": link}))
    given = ("--cluster", cluster, "--samples", 96, "--price", "2.5/h", "--json", "--", 5)
    done = run(script, *given)
    assert done.returncode == 0, done.stderr
    assert "this trains" not in done.stdout + done.stderr
    assert "this comes before fit" in done.stderr
    assert "this comes from a program" in done.stderr
    found = json.loads(done.stdout)
    assert {p["workers"] for p in found["predictions"]} == {1, 2, 4, 6}
    alone = found["predictions"][0]
    weights = 20 * 64 + 64 + 64 * 5 + 5
    activations = 24 * (20 + 64)  # the inputs as float32, and what the second layer gets
    assert 0 < alone["memory_bytes"] - 16 * weights < 8 * activations
    assert alone["epoch_seconds"] == pytest.approx(4 * alone["step_seconds"])
    assert alone["epoch_cost"] == pytest.approx(2.5 * alone["epoch_seconds"] / 3600)
    assert any("Some steps ran on this machine" in note for note in found["assumptions"])
    strategies = {p["strategy"] for p in found["predictions"] if p["workers"] == 2}
    assert strategies == {"multi_worker", "horovod", "parameter_server"}


def test_a_saved_model_is_planned(saved):
    given = ("--bandwidth", "1Gbit/s", "--batch-size", 64, "--device-step", "110ms")
    done = run(saved, *given, "--workers", "1,2,4,...,10000")
    assert done.returncode == 0, done.stderr
    assert "A step has 64 samples of each worker; a device takes 110 ms for them." in done.stdout
    assert "All figures are predicted, not measured." in done.stdout
    assert 'Recommended: tfdist.Strategy("multi_worker"' in done.stdout
    assert "ran on this machine" not in done.stdout
    assert "cost is that of CPUs: give --device gpu for GPUs." in done.stdout
    done = run(saved, *given, "--device", "gpu", "--workers", 2)
    assert "cost is that of GPUs: give --device cpu for CPUs." in done.stdout, done.stderr
    assert "Compressors were not measured on GPUs" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["--bandwidth", "1Gbit/s"], "A saved model needs --batch-size. Received: "),
        (["--batch-size", "8"], "Received: neither --cluster nor --bandwidth"),
        (["--batch-size", "8", "--efficiency", "nan"], "at most 1. Received: 'nan'"),
        (["--batch-size", "8", "--cluster", "none.json"], "Received: 'none.json'"),
        (
            ["--batch-size", "8", "--bandwidth", "1MB/s", "--device", "gpu"],
            "Received: --device gpu without --device-step",
        ),
        (["--batch-size", "8", "--bandwidth", "1MB/s", "--samples", "9" * 400], "'--samples'"),
        (
            ["--batch-size", "8", "--bandwidth", "1MB/s", "--strong", "--workers", "16,32"],
            "batch of 8 samples is divided among the workers, and each needs one at least. "
            "Received: --workers 16,32",
        ),
    ],
)
def test_errors_are_one_line(saved, arguments, received):
    done = run(saved, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tfdist plan: ")]
    assert received in line


def test_json_takes_no_file(capsys):
    assert main(["plan", "--json", "out.json", "model.keras"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "write `tfdist plan MODEL --json > out.json`" in line


def test_a_script_that_does_not_train_is_refused(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("import keras\n")
    done = run(path, "--bandwidth", "1Gbit/s")
    assert done.returncode == 2
    assert "had not called `fit` of a Keras model" in done.stderr


def test_what_to_choose_is_explained_without_tensorflow(tmp_path, saved):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken')\n")
    done = run("--explain", first=tmp_path)
    assert done.returncode == 0 and 'tfdist.Strategy("mirrored")' in done.stdout
    done = run(saved, "--bandwidth", "1Gbit/s", first=tmp_path)
    assert done.returncode == 2
    assert "reading a model needs TensorFlow and Keras: broken" in done.stderr
