"""`make test-rest` runs a test that failed once more, and no other test."""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]

SCRIPT = """
import os
import pytest

@pytest.mark.xdist_group("some group")
@pytest.mark.parametrize("case", ["first case-1", "second"])
def test_in_a_group(case):
    assert case == "second" or "AGAIN" in os.environ

def test_of_no_group():
    pass
"""


def of_makefile(name):
    """The options that the Makefile keeps in a variable."""
    say = f"say: ; @echo '$({name})'"
    make = ["make", "--silent", "--eval", say, "say"]
    return shlex.split(subprocess.run(make, cwd=ROOT, capture_output=True, text=True).stdout)


def run(folder, *options, **environment):
    command = [sys.executable, "-m", "pytest", "--dist", "loadgroup", "-o", "cache_dir=cache"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [*command, *options],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_only_what_failed_runs_again(tmp_path):
    (tmp_path / "test_some.py").write_text(SCRIPT)
    assert "1 failed, 2 passed" in run(tmp_path, "-n", "2").stdout
    again = of_makefile("AGAIN")
    failed = run(tmp_path, *again)
    assert (failed.returncode, "1 failed in" in failed.stdout) == (1, True), failed.stdout
    passed = run(tmp_path, *again, AGAIN="1")
    assert (passed.returncode, "1 passed in" in passed.stdout) == (0, True), passed.stdout
