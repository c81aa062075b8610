"""Checks before a job with parameter servers starts: no part is missing, all can be reached."""

from __future__ import annotations

from tfdist import environment
from tfdist.arguments import check_instance
from tfdist.cluster.config import Cluster
from tfdist.cluster.peers import (
    connect_timeout,
    listed,
    missing_peers,
    shortened,
)

# Requests that wait for each other take one thread each, and there may be one for each worker. A
# server without further threads would hang forever.
_SPARE_THREADS = 6

_NEEDED = {
    "chief": "which runs the training loop and hands out the steps",
    "worker": "which computes the gradients",
    "ps": "which keeps the variables",
}


def check_parameter_server_cluster(cluster: Cluster) -> None:
    """Raises unless the cluster has all that training with parameter servers needs.

    Args:
        cluster: the cluster.

    Raises:
        ValueError: in one line, when the cluster has no chief, no worker or no ps.
        TypeError: when `cluster` is no `Cluster`.

    Example:

    >>> from tfdist.cluster import Cluster, check_parameter_server_cluster
    >>> jobs = {"chief": ("a:2222",), "worker": ("b:2222",), "ps": ("c:2222",)}
    >>> check_parameter_server_cluster(Cluster(jobs, "chief", 0))
    """
    check_instance("cluster", cluster, Cluster, "tfdist.cluster.Cluster")
    for job, purpose in _NEEDED.items():
        if not cluster.jobs.get(job):
            raise ValueError(
                f"Training with parameter servers needs a `{job}`, {purpose}: add "
                f'"{job}": ["host:port"] to `cluster` in the TF_CONFIG of every process, or start '
                "the script with `tfdist run -n 3 --ps 1`. "
                f"Received: jobs={ {name: len(tasks) for name, tasks in cluster.jobs.items()} }"
            )


def wait_for_servers(cluster: Cluster, timeout: float | None = None) -> None:
    """Returns when the chief has reached every worker and ps; raises when some are missing.

    The chief calls this before it makes TensorFlow's strategy; see `wait_for_peers`.

    Args:
        cluster: the cluster, in which this process is the chief.
        timeout: seconds to wait. None for the environment variable TFDIST_CONNECT_TIMEOUT, which
            is 60 where it is not set.

    Raises:
        TimeoutError: in one line, with the name and address of each missing process.
        OSError: in one line, when this process' own port is in use.
        ValueError: when the cluster lacks a part, this process is not its chief, or `timeout` or
            TFDIST_CONNECT_TIMEOUT is no positive number.

    Example:

    >>> from tfdist.cluster import Cluster, wait_for_servers
    >>> from tfdist.cluster.addresses import listen, reserved_ports
    >>> with reserved_ports(3) as ports, listen(ports[1]), listen(ports[2]):
    ...     chief, worker, ps = (f"localhost:{port}" for port in ports)
    ...     jobs = {"chief": (chief,), "worker": (worker,), "ps": (ps,)}
    ...     wait_for_servers(Cluster(jobs, "chief", 0))
    """
    check_parameter_server_cluster(cluster)
    if cluster.task_type != "chief":
        raise ValueError(
            "Only the chief waits for the others; a worker or ps calls `tfdist.cluster.serve`. "
            f"Received: task={cluster.task_type} {cluster.task_index}"
        )
    timeout = connect_timeout(timeout)
    tasks = {
        f"{job} {index}": address
        for job in ("chief", "worker", "ps")
        for index, address in enumerate(cluster.jobs[job])
    }
    missing = missing_peers([*tasks.values()], 0, timeout, [*tasks])
    if missing:
        servers = [*cluster.jobs["worker"], *cluster.jobs["ps"]]
        raise TimeoutError(
            f"The chief ({cluster.address}) could not reach {listed(missing)} within {timeout:g} "
            "s. Start all workers and parameter servers, check their addresses and the firewalls "
            f"between, or set {environment.CONNECT_TIMEOUT} to wait longer. "
            f"Received: addresses={shortened(servers)}"
        )


def enough_threads(workers: int) -> int:
    """The number of threads for operations that each process needs so that none can hang.

    Args:
        workers: the number of workers, without the chief.

    Example:

    >>> from tfdist.cluster.parameter_server import enough_threads
    >>> enough_threads(2)
    8
    """
    return workers + _SPARE_THREADS
