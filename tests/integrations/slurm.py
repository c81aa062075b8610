"""A Slurm cluster of one machine: munged, slurmctld and slurmd of the distribution."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfdist.cluster.addresses import reserved_ports

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
# More than there are, so that tasks which mostly wait for each other run at the same time.
_CPUS = 8

_CONFIGURATION = """
ClusterName=tfdist
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={port_of_node}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=60
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def why_not() -> str | None:
    """Why no cluster can be started here; None if one can."""
    if os.geteuid() != 0:
        return "slurmctld and slurmd are started as root here"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no {', '.join(missing)}: install slurm-wlm and munge"
    return None


def _path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin"])


class Slurm:
    """The cluster, once it runs.

    Args:
        folder: where its files are.
    """

    def __init__(self, folder: Path):
        # What another Slurm, or another launcher of this process, has left must not be seen.
        foreign = ("SLURM_", "TF_CONFIG", "HOROVOD_", "TFDIST_")
        kept = {n: value for n, value in os.environ.items() if not n.startswith(foreign)}
        self.environment = {**kept, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, cwd: Path | None = None, **variables: str) -> str:
        """What a command prints."""
        environment = {**self.environment, **variables}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, folder: Path, command: Sequence[str], *options: str, **variables: str) -> str:
        """Submits a script with its arguments; returns the number of the job."""
        given = ("sbatch", "--parsable", f"--output={folder}/%j.log")
        return self.run(*given, *options, *command, cwd=folder, **variables)

    def state(self, job: str) -> dict[str, str]:
        """What `scontrol` says of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def ended(self, job: str, seconds: float) -> str:
        """Waits for the end of a job; returns its last state, in Slurm's words."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state(job)["JobState"]
            if state in _ENDED:
                return state
            time.sleep(0.5)
        return f"still {state} after {seconds} s"


@contextlib.contextmanager
def running() -> Iterator[Slurm]:
    """A cluster in a folder of its own, with ports of its own."""
    with contextlib.ExitStack() as stack:
        # Not in the folder of the tests: the path of a socket must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm")))
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        with reserved_ports(2) as (port, port_of_node):
            numbers = {"port": port, "port_of_node": port_of_node, "cpus": _CPUS}
        text = _CONFIGURATION.format(folder=folder, host=host, **numbers)
        (folder / "slurm.conf").write_text(text)
        slurm = Slurm(folder)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
        given = [f"--{option}={folder}/munge.{end}" for option, end in files.items()]
        given.append(f"--seed-file={folder}/munge.seed")
        stack.callback(_end, _start(slurm, folder, "munged", "--foreground", "--force", *given))
        _wait(lambda: (folder / "munge.socket").exists(), folder)
        for name in ("slurmctld", "slurmd"):
            stack.callback(_end, _start(slurm, folder, name, "-D"))
        _wait(lambda: "idle" in slurm.run("sinfo", "--noheader", "--format=%T"), folder)
        yield slurm


def _start(slurm: Slurm, folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.out").open("wb") as output:
        return subprocess.Popen(command, env=slurm.environment, stdout=output, stderr=output)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(is_ready: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(AssertionError):
            if is_ready():
                return
        time.sleep(0.3)
    said = "\n".join(path.read_text() for path in [*folder.glob("*.out"), *folder.glob("*.log")])
    raise AssertionError(f"Slurm does not start:\n{said}")
