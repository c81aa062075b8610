"""The environment variables of each rank: its place, its threads, its memory, its devices."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
from collections.abc import Iterator, Mapping

from tfdist.cluster.addresses import reserved_ports, without_proxy
from tfdist.cluster.config import Cluster
from tfdist.cluster.environments import RANK_VARIABLES
from tfdist.cluster.peers import TIMEOUT_VARIABLE

STRATEGIES = ("multi_worker", "horovod")
DEVICES_VARIABLE = "TFDIST_DEVICES_PER_WORKER"

# The C library otherwise returns the gradients' memory to the system after each step, and the
# system has to clear it before the next. 32 MiB are the most that its own rule would come to.
ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(1024**3),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2),
}


@contextlib.contextmanager
def environments(
    strategy: str,
    count: int,
    environ: Mapping[str, str] = os.environ,
    *,
    devices_per_worker: int | None = None,
    connect_timeout: float | None = None,
) -> Iterator[list[dict[str, str]]]:
    """The environments of `count` ranks on this machine; open while the ranks run.

    What the user has set for threads, memory, GPUs and the like stays as it is. The ranks of
    another launcher, in one of whose processes this runs, are forgotten.

    Args:
        strategy: "multi_worker", for which ports are reserved and TF_CONFIG is set, or "horovod",
            for which Horovod's rendezvous server runs.
        count: the number of ranks.
        environ: the environment to start from.
        devices_per_worker: the number of virtual CPU devices of each rank.
        connect_timeout: seconds that a rank waits for the others.

    Yields:
        The environments, in the order of the ranks.

    Raises:
        ImportError: in one line, for "horovod" where it is not installed.
        OSError: when there are not enough free ports.

    Example:

    >>> from tfdist.cluster.launcher.ranks import environments
    >>> with environments("multi_worker", 2, {}) as (first, second):
    ...     first["TF_CONFIG"] == second["TF_CONFIG"]
    False
    """
    common = {name: value for name, value in environ.items() if name not in RANK_VARIABLES}
    if devices_per_worker is not None:
        common[DEVICES_VARIABLE] = str(devices_per_worker)
    if connect_timeout is not None:
        common[TIMEOUT_VARIABLE] = f"{connect_timeout:g}"
        common["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(1, round(connect_timeout)))
    # Without it, what a killed rank printed last would be lost in its buffer.
    common.setdefault("PYTHONUNBUFFERED", "1")
    for name, value in {**threads(count, devices_per_worker or 1), **ALLOCATOR}.items():
        common.setdefault(name, value)
    places = {"multi_worker": _multi_worker, "horovod": _horovod}[strategy]
    with places(count, common) as own:
        yield [{**common, **variables} for variables in own]


def threads(count: int, devices: int = 1) -> dict[str, str]:
    """The variables that divide this machine's cores among `count` ranks.

    Args:
        count: the number of ranks.
        devices: the number of devices of each; each wants a thread for its collectives.

    Example:

    >>> from tfdist.cluster.launcher.ranks import threads
    >>> threads(1000)["TF_NUM_INTRAOP_THREADS"]
    '1'
    """
    share = max(1, cores() // count)
    return {
        "TF_NUM_INTRAOP_THREADS": f"{share}",
        "TF_NUM_INTEROP_THREADS": f"{max(2, share, devices)}",
        "OMP_NUM_THREADS": f"{share}",
    }


def cores() -> int:
    """The number of CPU cores that this process may use.

    Example:

    >>> from tfdist.cluster.launcher.ranks import cores
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

    >>> from tfdist.cluster.launcher.ranks import gpus
    >>> gpus({"CUDA_VISIBLE_DEVICES": "2,3"})
    ['2', '3']
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(len(glob.glob("/proc/driver/nvidia/gpus/*")))]
    names = [name.strip() for name in visible.split(",")]
    return [] if "-1" in names else [name for name in names if name]


@contextlib.contextmanager
def _multi_worker(count: int, environ: Mapping[str, str]) -> Iterator[list[dict[str, str]]]:
    devices = gpus(environ)
    each = len(devices) // count
    with reserved_ports(count) as ports:
        workers = tuple(f"127.0.0.1:{port}" for port in ports)
        common = without_proxy(environ, workers)
        places = []
        for rank in range(count):
            cluster = Cluster({"worker": workers}, "worker", rank)
            places.append({**common, "TF_CONFIG": cluster.to_tf_config()})
            if each:  # two processes cannot share a GPU
                own = devices[rank * each : (rank + 1) * each]
                places[rank]["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        yield places


@contextlib.contextmanager
def _horovod(count: int, environ: Mapping[str, str]) -> Iterator[list[dict[str, str]]]:
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as error:
        raise ImportError(
            "Horovod cannot be imported: install it with `make horovod` in a checkout of tfdist, "
            f"or choose the strategy multi_worker. Received: {error}"
        ) from error
    slots = get_host_assignments(parse_hosts(f"localhost:{count}"), count)
    server = RendezvousServer()
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": _loopback(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.start()),
    }
    try:
        server.init(slots)
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
        server.stop()


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")
