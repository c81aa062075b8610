"""The life of a worker or ps of a job with parameter servers: it serves until the chief has ended.

TensorFlow's own `Server.join` never returns.
"""

from __future__ import annotations

import os

from tfdist.cluster import chief, vanishing
from tfdist.cluster.addresses import check_port_free, without_proxy
from tfdist.cluster.config import Cluster
from tfdist.cluster.parameter_server import check_parameter_server_cluster, enough_threads
from tfdist.cluster.peers import connect_timeout

_THREADS_VARIABLE = "TF_NUM_INTEROP_THREADS"


def serve(cluster: Cluster) -> None:
    """Runs TensorFlow's server of this worker or ps, and returns when the chief has ended.

    No launcher is needed. After this call, a script should only end its process.

    Args:
        cluster: the cluster, in which this process is a worker or ps.

    Raises:
        ValueError: when the cluster lacks a part, or this process is neither worker nor ps.
        OSError: in one line, when the port of this process is in use.
        TimeoutError: in one line, when the chief was not seen within 60 seconds, or within the time
            that the environment variable TFDIST_CONNECT_TIMEOUT says.

    Example:

    >>> from tfdist.cluster import Cluster, serve
    >>> cluster = Cluster.from_environment()
    >>> if cluster is not None and cluster.task_type in ("worker", "ps"):
    ...     serve(cluster)
    ...     raise SystemExit(0)
    """
    check_parameter_server_cluster(cluster)
    if cluster.task_type not in ("worker", "ps") or cluster.address is None:
        raise ValueError(
            "Only a worker or ps serves; the chief runs the training loop. "
            f"Received: task={cluster.task_type} {cluster.task_index}"
        )
    timeout = connect_timeout()
    check_port_free(cluster.address)
    everyone = [address for addresses in cluster.jobs.values() for address in addresses]
    os.environ.update(without_proxy(os.environ, everyone))
    import tensorflow as tf

    me = f"{cluster.task_type} {cluster.task_index}"
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=_threads(len(cluster.jobs["worker"]))
    )
    # A thread that spins takes time from the computation of another process on the same cores.
    config.experimental.disable_thread_spinning = True
    server = tf.distribute.Server(
        {job: list(addresses) for job, addresses in cluster.jobs.items()},
        job_name=cluster.task_type,
        task_index=cluster.task_index,
        config=config,
    )
    vanishing.watch(everyone)
    (address,) = cluster.jobs["chief"]
    chief.wait_for_end(address, timeout)
    tf.get_logger().info("tfdist: the chief (%s) has ended, and so does %s", address, me)
    del server  # it had to live until here


def _threads(workers: int) -> int:
    """The number of threads for operations: the user's choice or the cores, but always enough."""
    chosen = os.environ.get(_THREADS_VARIABLE, "")
    return max(int(chosen) if chosen.isdecimal() else os.cpu_count() or 1, enough_threads(workers))
