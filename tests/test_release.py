"""What is released: a source archive and a wheel that have all of the package, and a citation.

`make wheel` has the archives checked that it has built (TFDIST_TEST_DIST).
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import tfdist
from tests.docs import sources
from tests.examples import image

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1800  # pip downloads TensorFlow, and others use the machine
_PACKAGES = {"google": "protobuf"}  # where it is imported under another name
_OPTIONAL = {"horovod"}
_NOT_RELEASED = (".*", "*.egg-info", "__pycache__", "_build", "build", "dist", "out")


def run(*command, cwd, **variables):
    """Runs a command that does not see the checkout."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def succeed(*command, cwd, **variables):
    """Returns what a command prints, which must not fail."""
    done = run(*command, cwd=cwd, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def empty_environment(folder):
    """Makes a virtual environment with pip alone; returns its Python."""
    succeed(sys.executable, "-m", "venv", folder, cwd=ROOT)
    return folder / "bin" / "python"


def packaged():
    """The files of the package in the checkout."""
    files = (path for path in (ROOT / "tfdist").rglob("*") if path.is_file())
    names = {path.relative_to(ROOT) for path in files}
    return {name.as_posix() for name in names if "__pycache__" not in name.parts}


def imported():
    """What the modules of the package import, but for Python's own modules."""
    found = set()
    for node in (node for tree in sources.trees().values() for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"tfdist"}


def given_to_setup(name):
    """The syntax tree of an argument of `setup`."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    (found,) = (
        node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == name
    )
    return found


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the source archive, and with the wheel that was built from it."""
    if "TFDIST_TEST_DIST" in os.environ:
        return Path(os.environ["TFDIST_TEST_DIST"]).resolve()
    folder = tmp_path_factory.mktemp("dist")
    # A copy, as setuptools leaves files beside what it builds.
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*_NOT_RELEASED))
    python = empty_environment(folder / "tools")
    done = run(python, "-m", "pip", "install", "--quiet", "build", cwd=folder)
    if done.returncode:
        pytest.skip(f"needs the package registry, from which pip gets `build`: {done.stderr}")
    succeed(python, "-m", "build", "--outdir", folder, source, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    return dist / f"tfdist-{tfdist.__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of an environment into which pip has put the wheel, and what that requires."""
    folder = tmp_path_factory.mktemp("installed")
    python = empty_environment(folder)
    succeed(python, "-m", "pip", "install", "--quiet", wheel, *image.PINS, cwd=folder)
    yield folder
    shutil.rmtree(folder)  # two gigabytes


def test_setup_names_all_files_that_are_no_modules():
    data = ast.literal_eval(given_to_setup("package_data"))
    others = {name for name in packaged() if not name.endswith(".py")}
    assert others == {f"tfdist/{name}" for name in data["tfdist"]}


def test_setup_finds_all_folders_with_modules():
    folders = {Path(name).parent.as_posix() for name in packaged() if name.endswith(".py")}
    assert len(folders) > 20
    assert {f"{folder}/__init__.py" for folder in folders} <= packaged()


def test_setup_requires_what_the_modules_import():
    texts = [ast.unparse(one) for one in given_to_setup("install_requires").elts]
    required = {re.search(r"['\"](\w+)", text)[1] for text in texts}
    assert required == {_PACKAGES.get(name, name) for name in imported() - _OPTIONAL}


@pytest.mark.full
@pytest.mark.xdist_group("release")
def test_a_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert names == packaged()


@pytest.mark.full
@pytest.mark.xdist_group("release")
def test_a_source_archive_has_the_package_and_what_builds_it(dist):
    name = f"tfdist-{tfdist.__version__}"
    with tarfile.open(dist / f"{name}.tar.gz") as file:
        names = {one.name.removeprefix(f"{name}/") for one in file if one.isfile()}
    names = {one for one in names if not one.startswith("tfdist.egg-info/")}
    builds_it = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
    assert names == packaged() | builds_it | {"PKG-INFO", "setup.cfg"}  # setuptools writes these


@pytest.mark.full
@pytest.mark.xdist_group("release")
def test_the_installed_wheel_checks_itself(installed, tmp_path):
    """In an environment that has nothing but what the wheel requires."""
    python = installed / "bin" / "python"
    succeed(python, "-m", "pip", "check", cwd=tmp_path)
    where = succeed(python, "-c", "import tfdist; print(tfdist.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    printed = succeed(python, "-m", "tfdist.testing.selfcheck", cwd=tmp_path)
    assert printed.count(" equal ") == 8 and printed.endswith("All equal.\n")
    assert tfdist.__version__ in succeed(installed / "bin" / "tfdist", "--version", cwd=tmp_path)


@pytest.mark.full
@pytest.mark.xdist_group("release")
def test_the_image_trains(installed, tmp_path):
    """Without Docker, in the environment of the wheel: it has TensorFlow, and tfdist no more."""
    python = installed / "bin" / "python"
    succeed(python, "-m", "pip", "uninstall", "--yes", "tfdist", cwd=tmp_path)
    variables = {"PATH": f"{installed / 'bin'}:{os.environ['PATH']}"}
    folder, entry_point, arguments = image.make(
        tmp_path, lambda step, cwd: succeed("sh", "-c", step, cwd=cwd, **variables)
    )
    printed = succeed(*entry_point, *arguments, cwd=folder, **variables)
    assert "Problems\n  none" in printed
    job = ("run", "-n", "2", "train.py", "--epochs", "2")
    printed = succeed(*entry_point, *job, cwd=folder, **variables)
    assert "after 2 epochs" in printed


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == tfdist.__version__
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)


@pytest.mark.full
@pytest.mark.xdist_group("release")
def test_the_citation_is_valid_by_its_published_schema(tmp_path):
    """In an environment of its own: cffconvert needs an older jsonschema than other packages."""
    python = empty_environment(tmp_path / "cffconvert")
    installing = run(python, "-m", "pip", "install", "--quiet", "cffconvert", cwd=tmp_path)
    if installing.returncode:
        pytest.skip(f"cffconvert cannot be installed here: {installing.stderr[-300:]}")
    command = (python.with_name("cffconvert"), "--validate", "--infile")
    printed = succeed(*command, ROOT / "CITATION.cff", cwd=tmp_path)
    assert "valid according to schema version 1.2.0" in printed
    wrong = tmp_path / "CITATION.cff"
    wrong.write_text((ROOT / "CITATION.cff").read_text() + "licence: Apache-2.0\n")
    assert run(*command, wrong, cwd=tmp_path).returncode
