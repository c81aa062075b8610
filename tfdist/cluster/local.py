"""A cluster of servers in this process, for tests and examples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist.cluster.addresses import reserved_ports
from tfdist.cluster.parameter_server import enough_threads
from tfdist.limits import MOST_DEVICES
from tfdist.validation import check_integer


@contextlib.contextmanager
def local_cluster(
    workers: int = 2, ps: int = 1
) -> Iterator[tf.distribute.cluster_resolver.ClusterResolver]:
    """Starts real servers in this process; a context manager.

    Make the cluster before models and strategies: what TensorFlow has made before it connects to a
    cluster cannot be used afterwards. Nor can a strategy of an earlier cluster be used afterwards.
    TensorFlow cannot stop its servers, so their threads stay until the process ends.

    Args:
        workers: the number of workers, 1 to 1024.
        ps: the number of parameter servers, 1 to 1024.

    Yields:
        What `tfdist.ParameterServerStrategy(cluster_resolver=...)` takes.

    Raises:
        ValueError: when a number is out of range.
        OSError: when there are not enough free ports.

    Example:

    >>> import tfdist
    >>> with tfdist.cluster.local_cluster(workers=2, ps=1) as resolver:
    ...     sorted(resolver.cluster_spec().jobs)
    ['chief', 'ps', 'worker']
    """
    check_integer("workers", workers, 1, MOST_DEVICES)
    check_integer("ps", ps, 1, MOST_DEVICES)
    with reserved_ports(1 + workers + ps) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        spec = tf.train.ClusterSpec(
            {"chief": addresses[:1], "worker": addresses[1 : 1 + workers], "ps": addresses[-ps:]}
        )
        config = tf.compat.v1.ConfigProto()
        config.inter_op_parallelism_threads = enough_threads(workers)
        servers = [
            tf.distribute.Server(spec, job_name=job, task_index=index, config=config)
            for job in ("worker", "ps")
            for index in range(spec.num_tasks(job))
        ]
        yield tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        del servers
