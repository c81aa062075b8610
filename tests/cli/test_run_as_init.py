"""`tfdist run` as process 1, as in a container: the kernel gives it no default for signals."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.cluster.addresses import free_ports

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


@contextlib.contextmanager
def as_init(*options, **variables):
    """`tfdist run` with some options as process 1; yields the namespace and that process."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("namespaces for processes are not permitted here")
    outer = subprocess.Popen(
        [*UNSHARE, sys.executable, "-m", "tfdist", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | variables,
    )
    first = outer.stdout.readline()
    (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    try:
        yield outer, int(inner), first
    finally:
        outer.kill()
        outer.communicate()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_sigterm_reaches_the_ranks(script):
    with as_init("-n", "2", script) as (outer, inner, first):
        assert sorted([first, outer.stdout.readline()]) == ["[1] up\n", "up\n"]
        os.kill(inner, signal.SIGTERM)
        output = outer.communicate(timeout=20)[0]
    assert outer.returncode == 128 + signal.SIGTERM
    assert {"asked", "[1] asked"} <= set(output.splitlines())


def test_sigterm_ends_a_launcher_that_waits_for_other_machines(script):
    meeting = ("--rendezvous", f"127.0.0.1:{free_ports(1)[0]}", "--machines", "2")
    secret = {"TFDIST_SECRET": "known to all launchers"}
    with as_init("-n", "1", *meeting, script, **secret) as (outer, inner, first):
        assert "Serving the rendezvous" in first
        os.kill(inner, signal.SIGTERM)
        output = outer.communicate(timeout=20)[0]
    assert outer.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in output
