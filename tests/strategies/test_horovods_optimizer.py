"""A forgotten `hvd.DistributedOptimizer` is refused by its name, whatever holds it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.strategies.horovod.backend import is_installed

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not is_installed(), reason="make horovod")
def test_horovods_own_optimizer_is_refused():
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [sys.executable, "-m", "tests.strategies.horovods_optimizer"],
        env=os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout.splitlines()[-1])
    assert len(found) == 13
    for case, error in found.items():
        kind = "Adam" if case.startswith("adam") else "SGD"
        assert error is not None and "so `hvd.DistributedOptimizer` has no place here" in error, (
            case,
            error,
        )
        assert "remove it, and pass the optimizer that is inside it, such as `keras.opt" in error
        assert f"Received: hvd.DistributedOptimizer of {kind} named " in error
