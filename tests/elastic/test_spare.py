"""A process that was started in advance runs a script as Python would, once it is called."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.elastic.test_faults import ROOT
from tfdist.elastic import membership
from tfdist.environment import ELASTIC
from tfdist.launcher import spare

SCRIPT = """
import json, pickle, sys

class Thing:
    pass

pickle.loads(pickle.dumps(Thing()))
main = sys.modules["__main__"]
names = [__name__, __file__, main.__file__, sys.path[0]]
print(json.dumps([sys.argv[1:], *names, main.Thing is Thing]))
"""


def run(folder, *arguments, called):
    """Runs a spare process for these arguments; returns how it ended."""
    ours, its = socket.socketpair()
    with ours, its:
        if called:
            ours.sendall(b'{"kind": "begin"}\n')
        ours.shutdown(socket.SHUT_WR)
        variables = {ELASTIC: f"{its.fileno()}:3"}
        fds = [its.fileno()]
        return python(folder, spare.__file__, *arguments, variables=variables, pass_fds=fds)


def python(folder, *arguments, variables=None, **options):
    path = os.pathsep.join([str(ROOT), str(folder / "package")])
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path} | (variables or {}),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.full
@pytest.mark.parametrize("program", [["package/script.py"], ["-m", "script"]])
def test_a_script_runs_as_usual(program, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "script.py").write_text(SCRIPT)
    if "-m" not in program:
        (tmp_path / "keras.py").write_text("raise AssertionError('other ranks do not import this')")
    usual = python(tmp_path, *program, "--a", "b")
    found = run(tmp_path, *program, "--a", "b", called=True)
    assert found.returncode == usual.returncode == 0, found.stderr
    assert json.loads(found.stdout) == json.loads(usual.stdout)


def test_variables_that_come_too_late_are_refused(monkeypatch):
    ours, its = socket.socketpair()
    with ours, its:
        ours.sendall(b"x")
        monkeypatch.setenv(ELASTIC, f"{its.fileno()}:3")
        monkeypatch.setattr(membership, "_early", None)
        membership.wait_to_be_called()
        monkeypatch.setenv("SOMETHING", "else")
        membership._check_environment()
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        with pytest.raises(RuntimeError, match="Received: TF_ENABLE_ONEDNN_OPTS set by the script"):
            membership._check_environment()


@pytest.mark.full
def test_ends_with_its_launcher(tmp_path):
    found = run(tmp_path, "script.py", called=False)
    assert found.returncode == 1
    assert "The launcher of this job has ended" in found.stderr
