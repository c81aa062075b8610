"""The processes of a job: how they are started, and how one sees that they fail or hang."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.equivalence.results import Result, file_name
from tfdist.launcher.ranks import environments

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LAST_LINES = 25
# After the first failure the other ranks may end by themselves, and so say what they have seen.
_SETTLE_SECONDS = 5.0


class JobError(Exception):
    """The processes failed in the training that was asked for."""


class JobHangsError(JobError):
    """The processes did not come to an end of the training that was asked for."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """When to give up.

    Attributes:
        start: seconds from the start of the processes to their first training.
        feature: seconds for one training.
        failures: after so many failures, one after the other, the rest is not tried.
    """

    start: float = 240.0
    feature: float = 240.0
    failures: int = 4


STRICT = Limits()


@dataclasses.dataclass(frozen=True)
class Ranks:
    """How processes are started.

    Attributes:
        column: the name by which they look up what to do; see `worker.py`.
        launcher: what connects them: "multi_worker" (TF_CONFIG) or "horovod".
        processes: their number.
        devices: virtual CPU devices of each.
        reducers: the number of reducers.
        hosts: the number of hosts on which Horovod's processes believe to be, equally many on each.
        program: the command, to which the description of the job and the rank are added.
    """

    column: str
    launcher: str
    processes: int
    devices: int = 1
    reducers: int = 0
    hosts: int = 1
    program: tuple[str, ...] = (sys.executable, "-m", "tests.equivalence.worker")


class Start:
    """One start of the processes, which train features in turn until one fails.

    Args:
        ranks: the processes.
        features: the names of the features, in their order.
        folder: for results, errors and logs.
        limits: when to give up.
    """

    def __init__(self, ranks: Ranks, features: Sequence[str], folder: pathlib.Path, limits: Limits):
        self._limit = limits.start + limits.feature
        self._later_limit = limits.feature
        self._since = time.time()
        self._folder = folder
        description = folder / "job.json"
        description.write_text(json.dumps({"column": ranks.column, "features": list(features)}))
        environ = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        devices = ranks.devices if ranks.devices > 1 else None
        self._processes: list[subprocess.Popen] = []
        self._stack = contextlib.ExitStack()
        own = self._stack.enter_context(
            environments(
                ranks.launcher,
                ranks.processes,
                environ,
                reducers=ranks.reducers,
                devices_per_worker=devices,
            )
        )
        self._reducers = [
            subprocess.Popen(
                [sys.executable, "-c", "import tfdist; tfdist.Strategy('multi_worker')"],
                env=environment,
                start_new_session=True,
            )
            for environment in own[ranks.processes :]
        ]
        for rank in range(ranks.processes):
            if ranks.hosts > 1:
                own[rank].update(_place(rank, ranks))
            log = self._stack.enter_context(self._log(rank).open("wb"))
            self._processes.append(
                subprocess.Popen(
                    [*ranks.program, str(description), str(rank)],
                    env=own[rank],
                    stdin=subprocess.PIPE,  # at whose end the rank ends, should the tests be killed
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # What Ctrl-C does to a rank would be taken for the rank's own failure.
                    start_new_session=True,
                )
            )

    def has_finished(self, feature: str) -> bool:
        """Whether all ranks have trained `feature`, the first of those that were left."""
        paths = self._paths(feature)
        if not all(path.exists() for path in paths):
            return False
        self._since = max(path.stat().st_mtime for path in paths)
        self._limit = self._later_limit
        return True

    def results(self, feature: str) -> list[Result]:
        """The results of the ranks, once they have finished `feature`."""
        return [pickle.loads(path.read_bytes()) for path in self._paths(feature)]

    def failure(self, feature: str) -> JobError | None:
        """What went wrong at `feature`, with the ranks' last words; None as long as all is well."""
        seconds = time.time() - self._since
        states = [process.poll() for process in self._processes]
        kind = JobError
        if any(states) or None not in states:
            self._wait(_SETTLE_SECONDS)
        elif seconds < self._limit:
            return None
        else:
            kind = JobHangsError
            for process in self._processes:
                process.send_signal(signal.SIGUSR1)  # they print where they are
            time.sleep(1)
        return kind("\n".join(self._last_words(n, feature, seconds) for n in self._numbers()))

    def _last_words(self, rank: int, feature: str, seconds: float) -> str:
        error = self._folder / file_name(feature, str(rank), "error")
        if error.exists():
            return f"rank {rank} failed:\n{error.read_text()}"
        status = self._processes[rank].poll()
        state = "still runs" if status is None else f"ended with status {status}"
        lines = self._log(rank).read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"rank {rank} {state} after {seconds:.0f} s; its last lines:", *lines])

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(p.poll() is None for p in self._processes):
            time.sleep(0.05)

    def _log(self, rank: int) -> pathlib.Path:
        return self._folder / f"rank-{rank}.log"

    def _paths(self, feature: str) -> list[pathlib.Path]:
        return [self._folder / file_name(feature, str(rank)) for rank in self._numbers()]

    def _numbers(self) -> range:
        return range(len(self._processes))

    def close(self) -> None:
        """Kills the processes."""
        for process in (*self._processes, *self._reducers):
            process.kill()
        for process in (*self._processes, *self._reducers):
            process.wait()
        for process in self._processes:
            process.stdin.close()
        self._stack.close()


def _place(rank: int, ranks: Ranks) -> dict[str, str]:
    """The variables that tell a process of Horovod on which host it is."""
    of_host = ranks.processes // ranks.hosts
    host, local_rank = divmod(rank, of_host)
    return {
        "HOROVOD_HOSTNAME": f"host{host}",
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(of_host),
        "HOROVOD_CROSS_RANK": str(host),
        "HOROVOD_CROSS_SIZE": str(ranks.hosts),
    }
