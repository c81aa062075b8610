"""Starts `tfdist run` as users do, and looks at what is left of it."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tfdist.launcher import ranks

# What the scripts of these tests begin with.
_BEGINNING = """\
import json, os, signal, subprocess, sys, time
from pathlib import Path

here = Path(sys.argv[1])
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
task = config.get("task", {})
if "HOROVOD_RANK" in os.environ:
    rank = int(os.environ["HOROVOD_RANK"])
elif task["type"] in ("ps", "evaluator", "reducer"):
    rank = f"{task['type']}-{task['index']}"
else:
    rank = task["index"] + (task["type"] == "worker" and "chief" in config["cluster"])


def note(name, text=""):
    temporary = here / f".{name}"
    temporary.write_text(str(text))
    temporary.rename(here / name)


def wait_for(*names):
    while not all((here / name).exists() for name in names):
        time.sleep(0.01)


note(f"pid-{rank}", os.getpid())
"""


class Launcher:
    """`tfdist run` with a script, in a directory of its own."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir(parents=True)
        self.script = self.directory / "script.py"
        self._started = []

    def command(self, body, *options, arguments=(), count=2):
        """The command line; the script gets the directory as its first argument."""
        self.script.write_text(_BEGINNING + textwrap.dedent(body))
        program = [sys.executable, "-m", "tfdist", "run", "-n", str(count), *map(str, options)]
        return [*program, str(self.script), str(self.directory), *map(str, arguments)]

    def environment(self, **changes):
        environ = {**os.environ, "TMPDIR": str(self.temporary), "TF_CPP_MIN_LOG_LEVEL": "3"}
        own = ("TF_CONFIG", "PYTHONUNBUFFERED", "HOROVOD_FUSION_THRESHOLD")
        for name in (*ranks.threads(1), *ranks.ALLOCATOR, *own):
            environ.pop(name, None)
        return {**environ, **changes}

    def run(self, body, *options, timeout=60, environ=None, **arguments):
        """Runs to the end; the outputs are bytes."""
        return subprocess.run(
            self.command(body, *options, **arguments),
            env=self.environment(**(environ or {})),
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def start(self, body, *options, environ=None, streams=subprocess.PIPE, **arguments):
        """Starts it; the streams are open."""
        process = subprocess.Popen(
            self.command(body, *options, **arguments),
            env=self.environment(**(environ or {})),
            stdout=streams,
            stderr=streams,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def close(self):
        """Ends what a test that failed has left."""
        for process in self._started:
            process.kill()
            process.communicate()

    def wait_for(self, *names, timeout=30):
        """Waits for notes of the script."""
        end = time.monotonic() + timeout
        while not all((self.directory / name).exists() for name in names):
            assert time.monotonic() < end, f"no note {names}"
            time.sleep(0.01)

    def note(self, name):
        return (self.directory / name).read_text()

    def seconds_since(self, name):
        """How long ago the script made that note."""
        return time.time() - (self.directory / name).stat().st_mtime

    def pids(self, *names):
        return [int(self.note(name)) for name in names]

    def logs(self):
        """The logs that are left in the temporary directory, by their names."""
        return {path.name: path.read_bytes() for path in self.temporary.rglob("*.log")}

    def processes(self):
        """All that run in this environment: the launcher, what it started, and so on."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                variables = (directory / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in variables:
                found.append(int(directory.name))
        return found


def python_path(first):
    """PYTHONPATH with `first` before what is there and the directory of the tests."""
    return os.pathsep.join([str(first), os.getcwd(), os.environ.get("PYTHONPATH", "")])


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def all_end(pids, within):
    """Whether all of these processes end in that time."""
    end = time.monotonic() + within
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def messages(finished):
    """What the launcher itself said."""
    lines = finished.stderr.decode().splitlines()
    return [line for line in lines if line.startswith("tfdist run: ")]
