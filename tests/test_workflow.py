"""The workflow of GitHub, as far as it can be checked where GitHub does not run it."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
MAKEFILE = (ROOT / "Makefile").read_text()


def jobs():
    """The jobs by their names. What is read is not `on`, which YAML takes for a truth value."""
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


def steps():
    """The steps of all jobs."""
    return [step for job in jobs().values() for step in job["steps"]]


def is_valid(path):
    """Whether a file is valid by the schema of workflows, which the package brings along."""
    package = pytest.importorskip(
        "check_jsonschema", reason="needs check-jsonschema, which `make wheel` installs"
    )
    command = ["--builtin-schema", "vendor.github-workflows", "--color", "never", str(path)]
    done = CliRunner().invoke(package.main, command)
    assert (done.exit_code == 0) != ("Schema validation errors" in done.output), done.output
    return done.exit_code == 0


def test_it_is_valid_by_its_schema():
    assert is_valid(WORKFLOW)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("timeout-minutes: 60", "timeout: 60"),
        ("timeout-minutes: 60", "timeout-minutes: an hour"),
        ("runs-on: ubuntu-latest", "os: ubuntu-latest"),
        ("- run: make check", "- name: make check"),
        ("  pull_request:", "  pull-request:"),
        ("fail-fast: false", "fail-fast: 2"),
    ],
)
def test_a_mistake_is_found_by_the_schema(right, wrong, tmp_path):
    text = WORKFLOW.read_text()
    assert right in text
    changed = tmp_path / "tests.yml"
    changed.write_text(text.replace(right, wrong, 1))
    assert not is_valid(changed)


def test_it_runs_targets_that_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.M))
    commands = [step["run"].split() for step in steps() if "run" in step]
    assert {program for program, *_ in commands} == {"make"}
    called = {target for _, *given in commands for target in given}
    expected = {"check", "test", "docs", "docs-versions", "wheel", "browser", "integrations"}
    assert expected <= called <= targets


def test_the_integrations_run_each_week_and_when_asked_for():
    started_by = yaml.load(WORKFLOW.read_text(), yaml.BaseLoader)["on"]  # no truth value here
    asked = re.findall(r"github\.event_name == '(\w+)'", jobs()["integrations"]["if"])
    assert set(asked) == {"schedule", "workflow_dispatch"} <= set(started_by)


def test_what_the_schemas_of_kubernetes_need_is_installed_where_they_are_tested():
    (recipe,) = re.findall(r"^integrations:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    installed, *run = recipe.splitlines()
    assert "kubernetes-validate" in installed.split("(call BESIDE,.venv-integrations,")[1]
    schemas = "tests/examples/test_manifest_schemas.py"
    assert (ROOT / schemas).exists()
    (pytest_of,) = (line.split()[0] for line in run if schemas in line)
    assert pytest_of == ".venv-integrations/bin/python"


def test_it_keeps_what_the_targets_write():
    kept = {step["with"]["path"] for step in steps() if "upload-artifact" in step.get("uses", "")}
    written = {
        *re.findall(r"--outdir (\S+)", MAKEFILE),
        *re.findall(r'^OUTPUT_DIR = "(.*)"$', (ROOT / "docs" / "versions.py").read_text(), re.M),
    }
    assert kept == written and len(kept) == 2


def test_its_pythons_are_supported():
    setup = (ROOT / "setup.py").read_text()
    supported = re.findall(r'"Programming Language :: Python :: ([\d.]+)"', setup)
    asked = {step["with"]["python-version"] for step in steps() if "setup-python" in str(step)}
    asked |= set(jobs()["test"]["strategy"]["matrix"]["python-version"])
    asked.remove("${{ matrix.python-version }}")
    assert {supported[0], supported[-1]} <= asked <= set(supported)
