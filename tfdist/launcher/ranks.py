"""The environment variables of each rank: its place, its threads, its memory, its devices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from tfdist import environment
from tfdist.cluster.environments import RANK_VARIABLES
from tfdist.cluster.parameter_server import enough_threads
from tfdist.launcher.members import members
from tfdist.rendezvous.machine import Meeting, meet
from tfdist.rendezvous.terms import FixedTerms
from tfdist.strategies.registry import LAUNCHED

# By default the C library returns the memory of a step's gradients to the system, and the system
# has to clear the memory before the next step. It returns blocks of more than 32 MiB, unless it may
# not map memory for single blocks. And it returns the heaps of all threads but the first, unless
# all threads share one heap.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1024**3),
}

# TensorFlow complains when a message is waited for and the worker has ended: how reducers end.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@contextlib.contextmanager
def environments(
    strategy: str,
    count: int,
    environ: Mapping[str, str] = os.environ,
    *,
    ps: int = 0,
    evaluator: bool = False,
    reducers: int = 0,
    devices_per_worker: int | None = None,
    connect_timeout: float | None = None,
) -> Iterator[list[dict[str, str]]]:
    """The environments of the ranks on this machine. Keep it open while the ranks run.

    What the user has set for threads, memory, GPUs and the like stays as it is. If this process was
    itself started by a launcher, the variables of that launcher are left out.

    Args:
        strategy: the name of a backend that `tfdist run` starts.
        count: the number of ranks.
        environ: the environment to start from.
        ps: the number of parameter servers: at least 1 for "parameter_server", else 0.
        evaluator: whether there is an evaluator; only with parameter servers.
        reducers: the number of reducers; only with a backend that has them.
        devices_per_worker: the number of virtual CPU devices of each rank.
        connect_timeout: seconds that a rank waits for the other ranks.

    Yields:
        The environments, in the order of `members(count, ps, evaluator, reducers)`.

    Raises:
        ImportError: in one line, for "horovod" where Horovod is not installed.
        OSError: when there are not enough free ports.

    Example:

    >>> from tfdist.launcher.ranks import environments
    >>> with environments("multi_worker", 2, {}) as (first, second):
    ...     first["TF_CONFIG"] == second["TF_CONFIG"]
    False
    """
    sharing, waiting = count + reducers, devices_per_worker or 1
    if ps:  # the chief only hands out the work
        sharing, waiting = count - 1 + ps + evaluator, enough_threads(count - 1)
    divided = threads(sharing, waiting)
    common = _common(divided, environ, devices_per_worker, connect_timeout)
    tasks = [member.task for member in members(count, ps, evaluator, reducers)]
    with LAUNCHED[strategy].environments(tasks, common) as own:
        yield [
            {**(_QUIET if job == "reducer" else {}), **common, **variables}
            for (job, _), variables in zip(tasks, own)
        ]


@contextlib.contextmanager
def environments_of_machine(
    terms: FixedTerms,
    count: int,
    environ: Mapping[str, str] = os.environ,
    *,
    reducers: int = 0,
    devices_per_worker: int | None = None,
    connect_timeout: float | None = None,
) -> Iterator[tuple[Meeting, list[dict[str, str]]]]:
    """Meets other machines. Keep it open until the job has ended on all machines.

    Args:
        terms: what the launchers agree on.
        count: the number of ranks on this machine.
        environ: the environment to start from.
        reducers: the number of reducers on this machine.
        devices_per_worker: the number of virtual CPU devices of each rank.
        connect_timeout: seconds that a rank waits for the other ranks.

    Yields:
        The launchers, and the environments of this machine's ranks, and then of its reducers.

    Raises:
        RefusedError: in one line, when the job cannot begin.
        OSError: when the rendezvous cannot be reached, or when there are not enough free ports.
    """
    divided = threads(count + reducers, devices_per_worker or 1)
    common = _common(divided, environ, devices_per_worker, connect_timeout)
    with meet(terms, count, reducers) as meeting:
        yield (
            meeting,
            [
                {**(_QUIET if place >= count else {}), **common, **variables}
                for place, variables in enumerate(meeting.variables)
            ],
        )


def _common(
    divided: Mapping[str, str],
    environ: Mapping[str, str],
    devices_per_worker: int | None,
    connect_timeout: float | None,
) -> dict[str, str]:
    """What the environments of all ranks have in common.

    Args:
        divided: the variables for threads, where the user has not set them.
        environ: as above.
        devices_per_worker: as above.
        connect_timeout: as above.
    """
    not_passed_on = (*RANK_VARIABLES, environment.SECRET, environment.SECRET_FILE)
    not_passed_on += (environment.WATCH,)
    common = {name: value for name, value in environ.items() if name not in not_passed_on}
    if devices_per_worker is not None:
        common[environment.DEVICES_PER_WORKER] = str(devices_per_worker)
    if connect_timeout is not None:
        common[environment.CONNECT_TIMEOUT] = f"{connect_timeout:g}"
        common["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(1, round(connect_timeout)))
    # Without this, the last output of a killed rank would be lost in its buffer.
    common.setdefault("PYTHONUNBUFFERED", "1")
    for name, value in {**divided, **ALLOCATOR}.items():
        common.setdefault(name, value)
    return common


def threads(count: int, waiting: int = 1) -> dict[str, str]:
    """The variables that divide this machine's cores among `count` processes.

    Args:
        count: the number of processes.
        waiting: how many operations of one process may wait at the same time, each in a thread:
            the collectives of its devices, or the requests of workers to a parameter server.

    Example:

    >>> from tfdist.launcher.ranks import threads
    >>> threads(1000)["TF_NUM_INTRAOP_THREADS"]
    '1'
    """
    share = max(1, cores() // count)
    return {
        "TF_NUM_INTRAOP_THREADS": f"{share}",
        "TF_NUM_INTEROP_THREADS": f"{max(2, share, waiting)}",
        "OMP_NUM_THREADS": f"{share}",
    }


def cores() -> int:
    """The number of CPU cores that this process may use.

    Example:

    >>> from tfdist.launcher.ranks import cores
    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
