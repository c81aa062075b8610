"""Machines of an elastic job, and what happens to them.

The machines are launchers on this machine, each with a group of processes of its own, or on hosts
of their own: network namespaces.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

from tests.elastic.test_faults import DEADLINE, ROOT
from tests.traffic import network
from tfdist.cluster.addresses import free_ports


class Machines:
    """The launchers of one job.

    Args:
        folder: for what the ranks write.
        engine: the name of a strategy.
        faults: as for `tests.elastic.job`.
        **environ: environment variables.

    Attributes:
        address: of the rendezvous.
    """

    def __init__(self, folder, engine, faults, **environ):
        self._folder = folder
        self._engine = engine
        self._faults = faults
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._environ = environ
        self.launchers = []

    def start(self, count, *options, host=None):
        """Starts the launcher of one machine; on a host of its own, if that is given."""
        job = ["tfdist", "run", "-n", str(count), "--rendezvous", self.address]
        job += ["--strategy", self._engine, "--stall-timeout", "3", "--timeout", str(DEADLINE)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": path, "TFDIST_SECRET": "known to all launchers"}
        log = (self._folder / f"machine-{len(self.launchers)}.log").open("w")
        with log:
            start = subprocess.Popen if host is None else host.start
            launcher = start(
                [sys.executable, "-m", *job, *options, "-m", "tests.elastic.job"]
                + [str(self._folder), *self._faults],
                env=os.environ | variables | self._environ,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.launchers.append(launcher)
        return launcher

    def log(self, number):
        """What the launcher of a machine has printed."""
        return (self._folder / f"machine-{number}.log").read_text()

    def wait_for(self, number, text):
        """Waits until the launcher of a machine has printed a text."""
        end = time.monotonic() + 60
        while text not in self.log(number):
            assert time.monotonic() < end, self.log(number)
            time.sleep(0.05)

    def ends(self):
        """The exit status of each launcher. Waits for their ends."""
        return [launcher.wait(DEADLINE + 30) for launcher in self.launchers]

    def close(self):
        for launcher in self.launchers:
            with contextlib.suppress(OSError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()


# What happens to two machines with two ranks each, of which at least four are needed, or two: the
# ranks that are left, and the statuses of the launchers.
FAULTS = {
    "the ranks of the second machine are replaced": (
        ["2:SIGKILL:step 3", "3:SIGKILL:step 3"],
        4,
        [0, 1, 4, 5],
        [0, 0],
    ),
    "those of the first one are replaced": (
        ["0:SIGKILL:step 3", "1:SIGKILL:micro 7"],
        4,
        [2, 3, 4, 5],
        [0, 0],
    ),
    "the ranks of the second machine are replaced twice": (
        ["2:SIGKILL:step 3", "3:SIGKILL:step 3", "4:SIGKILL:step 9", "5:SIGKILL:step 9"],
        4,
        [0, 1, 6, 7],
        [0, 0],
    ),
    "Ctrl-C on the second machine": (["3:launcher SIGINT:step 3"], 2, [0, 1], [0, 130]),
    "the second machine is lost": (["2:launcher SIGKILL:step 3"], 2, [0, 1], [0, -9]),
    "the second machine is preempted": (["3:launcher SIGTERM:step 3"], 2, [0, 1], [0, 143]),
    "only the second machine has ranks": (
        ["0:SIGTERM:step 3", "1:SIGTERM:step 6"],
        2,
        [2, 3],
        [0, 0],
    ),
}

# What happens to the network of the third of three machines with a rank each, once they train;
# which ranks are left, and the statuses of the launchers.
NETWORK = {
    "the network of a machine is cut": (network.Host.cut, [0, 1], [0, 0, 75]),
    "what a machine sends is lost": (network.Host.mute, [0, 1], [0, 0, 75]),
    "a link has 1 Mbit/s": (lambda host: host.limit("1mbit"), [0, 1, 2], [0, 0, 0]),
}


@contextlib.contextmanager
def network_fault(name, job):
    """Lets three machines train, and something happen to the third one.

    Args:
        name: of `NETWORK`.
        job: the machines, none of which is started.
    """
    act, *_ = NETWORK[name]
    with network.hosts(3) as hosts:
        job.address = f"{hosts[0].address}:2222"
        for host in hosts:
            job.start(1, "--min", "2", host=host)
            time.sleep(0.5)  # the first one serves
        job.wait_for(0, "Epoch 2/")
        act(hosts[2])
        yield job
