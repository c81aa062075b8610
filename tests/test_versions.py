"""Wrong versions and backends are refused at import, in one line."""

import os
import subprocess
import sys

import pytest

from tfdist import _versions


@pytest.mark.parametrize(
    ("tensorflow", "keras"), [("2.20.0", "3.10.0"), ("2.21.0", "3.15.1"), ("2.21.0rc1", "3.12.3")]
)
def test_supported_versions_pass(tensorflow, keras):
    _versions.check(tensorflow, keras, "tensorflow")


@pytest.mark.parametrize(
    ("tensorflow", "keras", "message"),
    [
        ("2.19.1", "3.12.0", "tensorflow >= 2.20, < 2.22. Received: tensorflow 2.19.1"),
        ("2.22.0", "3.12.0", "Received: tensorflow 2.22.0"),
        ("2.21.0", "2.15.0", "keras >= 3.10, < 3.16. Received: keras 2.15.0"),
        ("2.21.0", "3.9.2", "Received: keras 3.9.2"),
        ("2.21.0", "3.16.0", "Received: keras 3.16.0"),
    ],
)
def test_other_versions_are_refused(tensorflow, keras, message):
    with pytest.raises(ImportError, match=message):
        _versions.check(tensorflow, keras, "tensorflow")


@pytest.mark.job
def test_other_backend_is_refused_at_import(tmp_path):
    """A stand-in for JAX is enough for Keras to start with that backend's name."""
    code = "import keras; keras.config.backend = lambda: 'jax'; import tfdist"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode != 0
    assert "needs Keras' TensorFlow backend" in finished.stderr.splitlines()[-1]
    assert "backend='jax'" in finished.stderr.splitlines()[-1]
