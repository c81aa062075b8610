"""The environment variables of each rank: its place, its threads, its memory, its devices."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import threading
from collections.abc import Iterator, Mapping

from tfdist import environment
from tfdist.cluster.addresses import reserved_ports, without_proxy
from tfdist.cluster.config import Cluster
from tfdist.cluster.environments import RANK_VARIABLES
from tfdist.cluster.parameter_server import enough_threads
from tfdist.launcher.members import Member, members

# Where the ranks of one machine find each other.
_HOST = "127.0.0.1"

STRATEGIES = ("multi_worker", "horovod", "parameter_server")

# The C library otherwise returns the memory of a step's gradients to the system, and the system has
# to clear it before the next: all that is larger than 32 MiB unless it may map nothing by itself,
# and the heaps of other threads than the first unless all share one.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1024**3),
}


@contextlib.contextmanager
def environments(
    strategy: str,
    count: int,
    environ: Mapping[str, str] = os.environ,
    *,
    ps: int = 0,
    devices_per_worker: int | None = None,
    connect_timeout: float | None = None,
) -> Iterator[list[dict[str, str]]]:
    """The environments of the ranks on this machine; open while the ranks run.

    What the user has set for threads, memory, GPUs and the like stays as it is. The ranks of
    another launcher, in one of whose processes this runs, are forgotten.

    Args:
        strategy: "multi_worker" or "parameter_server", for which ports are reserved and TF_CONFIG
            is set, or "horovod", for which Horovod's rendezvous server runs.
        count: the number of ranks.
        environ: the environment to start from.
        ps: the number of parameter servers: at least 1 for "parameter_server", else 0.
        devices_per_worker: the number of virtual CPU devices of each rank.
        connect_timeout: seconds that a rank waits for the others.

    Yields:
        The environments, in the order of `members(count, ps)`.

    Raises:
        ImportError: in one line, for "horovod" where it is not installed.
        OSError: when there are not enough free ports.

    Example:

    >>> from tfdist.launcher.ranks import environments
    >>> with environments("multi_worker", 2, {}) as (first, second):
    ...     first["TF_CONFIG"] == second["TF_CONFIG"]
    False
    """
    common = {name: value for name, value in environ.items() if name not in RANK_VARIABLES}
    if devices_per_worker is not None:
        common[environment.DEVICES_PER_WORKER] = str(devices_per_worker)
    if connect_timeout is not None:
        common[environment.CONNECT_TIMEOUT] = f"{connect_timeout:g}"
        common["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(1, round(connect_timeout)))
    # Without it, what a killed rank printed last would be lost in its buffer.
    common.setdefault("PYTHONUNBUFFERED", "1")
    sharing, waiting = count, devices_per_worker or 1
    if ps:  # the chief hands out the work
        sharing, waiting = count - 1 + ps, enough_threads(count - 1)
    for name, value in {**threads(sharing, waiting), **ALLOCATOR}.items():
        common.setdefault(name, value)
    places = _horovod if strategy == "horovod" else _clustered
    with places(members(count, ps), common) as own:
        yield [{**common, **variables} for variables in own]


def threads(count: int, waiting: int = 1) -> dict[str, str]:
    """The variables that divide this machine's cores among `count` processes.

    Args:
        count: the number of processes.
        waiting: operations of one process that may wait at the same time, each in a thread: the
            collectives of its devices, the requests of parameter servers' workers.

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


def gpus(environ: Mapping[str, str]) -> list[str]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Args:
        environ: the environment variables.

    Example:

    >>> from tfdist.launcher.ranks import gpus
    >>> gpus({"CUDA_VISIBLE_DEVICES": "2,3"})
    ['2', '3']
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(len(glob.glob("/proc/driver/nvidia/gpus/*")))]
    names = [name.strip() for name in visible.split(",")]
    return [] if "-1" in names else [name for name in names if name]


@contextlib.contextmanager
def _clustered(job: list[Member], environ: Mapping[str, str]) -> Iterator[list[dict[str, str]]]:
    with reserved_ports(len(job)) as ports:
        addresses = [f"{_HOST}:{port}" for port in ports]
        common = without_proxy(environ, addresses)
        jobs: dict[str, tuple[str, ...]] = {}
        for member, address in zip(job, addresses):
            kind, _ = member.task
            jobs[kind] = (*jobs.get(kind, ()), address)
        yield [
            {
                **common,
                "TF_CONFIG": Cluster(jobs, *member.task).to_tf_config(),
                **_own_gpus(member, len(jobs["worker"]), gpus(environ)),
            }
            for member in job
        ]


def _own_gpus(member: Member, workers: int, devices: list[str]) -> dict[str, str]:
    """Divides the GPUs among the workers, for two processes cannot share one."""
    kind, index = member.task
    each = len(devices) // workers
    if kind == "worker" and not each:
        return {}
    own = devices[index * each : (index + 1) * each] if kind == "worker" else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if devices else {}


@contextlib.contextmanager
def _horovod(job: list[Member], environ: Mapping[str, str]) -> Iterator[list[dict[str, str]]]:
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise ImportError(
            "Horovod cannot be imported: install it with `make horovod` in a checkout of tfdist, "
            f"or choose the strategy multi_worker. Received: {error}"
        ) from error
    slots = get_host_assignments(parse_hosts(f"localhost:{len(job)}"), len(job))
    # `RendezvousServer` of the same module would listen on all interfaces.
    server = RendezvousHTTPServer((_HOST, 0), RendezvousHandler, verbose=0)
    server.init(slots)
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": _loopback(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _HOST,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield [
            {
                **common,
                "HOROVOD_HOSTNAME": slot.hostname,
                "HOROVOD_RANK": str(slot.rank),
                "HOROVOD_SIZE": str(slot.size),
                "HOROVOD_LOCAL_RANK": str(slot.local_rank),
                "HOROVOD_LOCAL_SIZE": str(slot.local_size),
                "HOROVOD_CROSS_RANK": str(slot.cross_rank),
                "HOROVOD_CROSS_SIZE": str(slot.cross_size),
            }
            for slot in slots
        ]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")
