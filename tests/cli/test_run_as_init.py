"""`tfdist run` as process 1, as in a container: the kernel gives it no default for signals."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SCRIPT = """
import signal, sys, time

def leave(number, frame):
    print("asked", flush=True)
    time.sleep(0.5)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path):
    """A job of two ranks in a namespace of its own, and its process 1."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("namespaces for processes are not permitted here")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", str(script)]
    outer = subprocess.Popen(
        [*UNSHARE, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = sorted(outer.stdout.readline() for _ in range(2))
    assert lines == ["[1] up\n", "up\n"]
    (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    yield outer, int(inner)
    outer.kill()
    outer.communicate()


def test_sigterm_reaches_the_ranks(job):
    outer, inner = job
    subprocess.run(["kill", "-TERM", str(inner)], check=True)
    output = outer.communicate(timeout=20)[0]
    assert outer.returncode == 128 + signal.SIGTERM
    assert {"asked", "[1] asked"} <= set(output.splitlines())
