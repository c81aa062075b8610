"""What is released: a wheel that has all of the package, and a citation of the same version."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import tfdist

ROOT = Path(__file__).resolve().parents[1]


def run(*command, cwd, **variables):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # pip leaves files beside what it builds
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tfdist", source / "tfdist", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--no-deps", "--quiet", "--wheel-dir", folder, source)
    done = run("-m", "pip", "wheel", *options, cwd=folder)
    if done.returncode and "setuptools" in done.stderr and "find" in done.stderr:
        pytest.skip("pip gets setuptools, which builds a wheel, from the network")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("tfdist-*.whl")
    return built


@pytest.mark.full
def test_a_wheel_has_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tfdist").rglob("*.py")}
    assert names == {*modules, "tfdist/py.typed"}
    assert wheel.name == f"tfdist-{tfdist.__version__}-py3-none-any.whl"


@pytest.mark.full
def test_the_installed_wheel_checks_itself(wheel, tmp_path):
    """In a folder of its own, with the TensorFlow of this environment."""
    installed = tmp_path / "installed"
    options = ("--no-deps", "--quiet", "--target", installed, wheel)
    done = run("-m", "pip", "install", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # -P: the folder of the module that runs, here the checkout, is not searched.
    variables = {"PYTHONPATH": str(installed)}
    where = run("-c", "import tfdist; print(tfdist.__file__)", cwd=tmp_path, **variables)
    assert where.stdout.strip() == str(installed / "tfdist" / "__init__.py")
    done = run("-m", "tfdist.testing.selfcheck", cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" equal ") == 8 and done.stdout.endswith("All equal.\n")


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == tfdist.__version__
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)


def test_the_workflow_runs_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    makefile = (ROOT / "Makefile").read_text().splitlines()
    targets = {line.partition(":")[0] for line in makefile if ":" in line}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"].split() for step in steps if "run" in step]
    called = {words[1] for words in commands if words[0] == "make"}
    assert {"check", "test", "docs", "wheel"} <= called <= targets
