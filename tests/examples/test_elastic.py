"""The script of the clusters' examples goes on from its backup when its job is started again."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(folder, epochs):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    environment.update(PYTHONPATH=str(ROOT), BACKUP=str(folder / "backup"))
    launch = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--min", "1", "--timeout", "200"]
    return subprocess.Popen(
        [*launch, str(ROOT / "examples" / "elastic.py"), "--epochs", str(epochs)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.full
def test_a_job_that_is_started_again_goes_on(tmp_path):
    first = start(tmp_path, epochs=10_000)
    for line in first.stdout:
        if line.startswith("Epoch 5/"):
            break
    first.send_signal(signal.SIGTERM)
    output = line + first.communicate(timeout=100)[0]
    assert first.returncode == 143, output
    done = int(re.findall(r"^Epoch (\d+)/", output, re.M)[-1])
    second = start(tmp_path, epochs=done + 2)
    output = second.communicate(timeout=200)[0]
    assert second.returncode == 0, output
    begun = int(re.findall(r"^Epoch (\d+)/", output, re.M)[0])
    assert done - 1 <= begun <= done + 1
    assert len(re.findall(r"^loss: [\d.]+ after ", output, re.M)) == 1
