"""Older versions and other backends are refused at import in one line, newer versions warned of."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tfdist import _versions


@pytest.mark.parametrize(
    ("tensorflow", "keras"), [("2.20.0", "3.10.0"), ("2.21.0", "3.15.1"), ("2.21.0rc1", "3.12.3")]
)
def test_supported_versions_pass(tensorflow, keras):
    assert _versions.check(tensorflow, keras, "tensorflow", strict=True) == []


@pytest.mark.parametrize(
    ("tensorflow", "keras", "message"),
    [
        ("2.19.1", "3.12.0", "tensorflow >= 2.20, < 2.22. Received: tensorflow 2.19.1"),
        ("2.21.0", "2.15.0", "keras >= 3.10, < 3.16. Received: keras 2.15.0"),
        ("2.21.0", "3.9.2", "Received: keras 3.9.2"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_older_versions_are_refused(tensorflow, keras, message, strict):
    with pytest.raises(ImportError, match=message):
        _versions.check(tensorflow, keras, "tensorflow", strict)


@pytest.mark.parametrize(
    ("tensorflow", "keras", "named"),
    [
        ("2.22.0rc0", "3.12.0", "tensorflow 2.20-2.21, not with tensorflow 2.22.0rc0"),
        ("2.21.0", "3.16.0", "keras 3.10-3.15, not with keras 3.16.0"),
        ("2.21.0", "4.0.0", "not with keras 4.0.0"),
    ],
)
def test_newer_versions_are_noted_or_with_strict_refused(tensorflow, keras, named):
    (line,) = _versions.check(tensorflow, keras, "tensorflow")
    assert named in line and "pip install" in line
    with pytest.raises(ImportError, match="TFDIST_STRICT_VERSIONS is set") as refused:
        _versions.check(tensorflow, keras, "tensorflow", strict=True)
    assert named.rpartition("with ")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("value", "strict"), [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_the_environment_variable_says_whether_to_be_strict(value, strict):
    environ = {} if value is None else {"TFDIST_STRICT_VERSIONS": value}
    assert _versions.is_strict(environ) is strict


def test_another_value_of_the_environment_variable_is_refused():
    with pytest.raises(ImportError, match="Received: TFDIST_STRICT_VERSIONS='yes'"):
        _versions.is_strict({"TFDIST_STRICT_VERSIONS": "yes"})


@pytest.mark.graph
def test_newer_versions_are_warned_of_once(monkeypatch):
    monkeypatch.setattr(_versions, "_warned", set())
    monkeypatch.delenv("TFDIST_STRICT_VERSIONS", raising=False)
    versions = {"tensorflow": "2.21.0", "keras": "3.99.0"}
    monkeypatch.setattr(_versions, "installed", lambda: versions)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _versions.check_installed()
        _versions.check_installed()
    assert [str(one.message) for one in caught] == _versions.check("2.21.0", "3.99.0", "tensorflow")
    monkeypatch.setenv("TFDIST_STRICT_VERSIONS", "1")
    with pytest.raises(ImportError, match="Received: keras 3.99.0"):
        _versions.check_installed()


def test_pip_asks_for_what_is_not_refused():
    """The lower bounds of setup.py are those of the check, and pip may install newer releases."""
    text = (Path(__file__).parents[1] / "setup.py").read_text()
    for name in ("tensorflow", "keras"):
        oldest, end = re.search(rf'_{name.upper()} = ">=([\d.]+),<(\d+)"', text).groups()
        assert _versions.requirement(name).startswith(f"{name}>={oldest},")
        assert int(end) == int(oldest.split(".")[0]) + 1


def import_with(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.job
def test_the_warning_names_the_users_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import tfdist\n\ntfdist.callbacks\ntfdist.MirroredStrategy\n")
    code = (
        "import runpy; from tfdist import _versions; "
        "_versions.installed = lambda: {'tensorflow': '2.21.0', 'keras': '3.99.0'}; "
        f"runpy.run_path({str(script)!r})"
    )
    finished = import_with(code)
    assert finished.returncode == 0, finished.stderr
    (warning,) = [line for line in finished.stderr.splitlines() if "UserWarning" in line]
    assert warning.startswith(f"{script}:3: ") and "not with keras 3.99.0" in warning


@pytest.mark.job
def test_other_backend_is_refused_at_import():
    """A stand-in for JAX is enough for Keras to start with that backend's name."""
    finished = import_with("import keras; keras.config.backend = lambda: 'jax'; import tfdist")
    assert finished.returncode != 0
    assert "needs Keras' TensorFlow backend" in finished.stderr.splitlines()[-1]
    assert "backend='jax'" in finished.stderr.splitlines()[-1]
