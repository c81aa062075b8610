"""The processes of a parameter server job, here or on hosts, and what happens to them."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from tests.faults import surroundings
from tests.traffic import network
from tfdist.cluster import Cluster
from tfdist.cluster.addresses import reserved_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("chief-0", "worker-0", "worker-1", "ps-0")
PORT = 2222


class Servers:
    """A chief, two workers and a parameter server.

    Args:
        folder: of the job; an existing one.
        policy: of `tests.faults.servers_job`.
        hosts: one for each process; none for this machine.
        environ: environment variables.

    Attributes:
        addresses: by the names of the processes, such as "ps-0".
        processes: the processes by their names.
        happened: when the last fault has happened, by `time.monotonic`.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        policy: str,
        hosts: Sequence[network.Host] = (),
        environ: dict[str, str] | None = None,
    ):
        self.folder = folder
        self._policy = policy
        self._hosts = dict(zip(NAMES, hosts))
        self._environ = environ or {}
        self._ahead = folder / "ahead"
        self.happened = time.monotonic()
        self._timers: list[threading.Timer] = []
        self.processes: dict[str, subprocess.Popen] = {}
        self.addresses = {name: f"{host.address}:{PORT}" for name, host in self._hosts.items()}
        if not hosts:
            with reserved_ports(len(NAMES)) as ports:
                self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, ports)}

    def start(self, name: str, updates: Sequence[int] = ()) -> None:
        """Starts a process.

        Args:
            name: such as "ps-0".
            updates: after which the chief makes a file.
        """
        jobs = collections.defaultdict(tuple)
        for other, address in self.addresses.items():
            jobs[other.split("-")[0]] += (address,)
        kind, index = name.split("-")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {
            "TF_CONFIG": Cluster(dict(jobs), kind, int(index)).to_tf_config(),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": path,
            **self._environ,
        }
        host = self._hosts.get(name)
        run = host.start if host else subprocess.Popen
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = run(
                [sys.executable, "-m", "tests.faults.servers_job", str(self.folder), self._policy]
                + [str(number) for number in updates],
                env=os.environ | variables,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def happen(self, name: str, fault: str) -> None:
        """Lets something happen to a process, or to the host that it is on.

        Args:
            name: such as "ps-0".
            fault: a signal; "PAUSE" for five seconds, "CLOCK" of all processes, "RESTART", or
                "CUT", "BREAK" (for 45 seconds), "MUTE" and "LIMIT" of the network.
        """
        process, host = self.processes[name], self._hosts.get(name)
        if fault == "CLOCK":
            self._ahead.touch()
        elif fault == "PAUSE":
            process.send_signal(signal.SIGSTOP)
            self._later(5, lambda: process.send_signal(signal.SIGCONT))
        elif fault == "RESTART":
            process.kill()
            process.wait()
            self.start(name)
        elif fault == "BREAK":
            host.cut()
            self._later(45, host.mend)
        elif fault in ("CUT", "MUTE", "LIMIT"):
            {"CUT": host.cut, "MUTE": host.mute, "LIMIT": lambda: host.limit("1mbit")}[fault]()
        else:
            process.send_signal(getattr(signal, fault))

    def _later(self, seconds: float, act) -> None:
        timer = threading.Timer(seconds, act)
        timer.start()
        self._timers.append(timer)

    def train(self, faults: Sequence[str], deadline: float) -> int:
        """Trains; returns the status of the chief.

        Args:
            faults: such as "ps-0:SIGKILL:5", after update 5.
            deadline: seconds.

        Raises:
            subprocess.TimeoutExpired: at the deadline.
        """
        end = time.monotonic() + deadline
        planned = [fault.split(":") for fault in faults]
        for name in NAMES:
            self.start(name, sorted({int(number) for *_, number in planned}))
        chief = self.processes["chief-0"]
        for name, fault, number in planned:
            while not (self.folder / f"update-{number}").exists() and chief.poll() is None:
                if time.monotonic() > end:
                    raise subprocess.TimeoutExpired(f"update {number}", deadline)
                time.sleep(0.002)
            self.happened = time.monotonic()
            self.happen(name, fault)
        return chief.wait(max(0.0, end - time.monotonic()))

    def ends(self, within: float) -> dict[str, int | None]:
        """The statuses of all processes; None for those that have not ended after some seconds."""
        end = time.monotonic() + within
        found: dict[str, int | None] = {}
        for name, process in self.processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            found[name] = process.returncode
        return found

    def log(self, name: str = "chief-0") -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def result(self) -> dict:
        """What the chief has written."""
        return pickle.loads((self.folder / "result.pickle").read_bytes())

    def close(self) -> None:
        """Ends all processes."""
        for timer in self._timers:
            timer.cancel()
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


@contextlib.contextmanager
def servers(
    folder: pathlib.Path, policy: str, surrounding: str = "", **environ: str
) -> Iterator[Servers]:
    """A job, with what is around it.

    Args:
        folder: of the job; an existing one.
        policy: of `tests.faults.servers_job`.
        surrounding: "hosts" for one for each process, or a `kind` of `surroundings.around`.
        **environ: environment variables.
    """
    with contextlib.ExitStack() as stack:
        hosts: Sequence[network.Host] = ()
        if surrounding == "hosts":
            hosts = stack.enter_context(network.hosts(len(NAMES)))
        else:
            environ |= stack.enter_context(surroundings.around(surrounding, folder))
        made = Servers(folder, policy, hosts, environ)
        stack.callback(made.close)
        yield made
