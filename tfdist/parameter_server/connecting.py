"""What a process does first: the chief connects; the others serve until the chief has ended."""

from __future__ import annotations

import contextlib
import functools
import os

import tensorflow as tf

from tfdist.cluster import Cluster, vanishing
from tfdist.cluster.addresses import reserved_ports, without_proxy
from tfdist.cluster.local import local_cluster
from tfdist.cluster.parameter_server import check_parameter_server_cluster, wait_for_servers
from tfdist.cluster.places import LOOPBACK
from tfdist.cluster.server import serve

# Where this process already serves as a chief. Another strategy of the same cluster waits for
# nobody.
_served: set[str | None] = set()

# Those that TensorFlow connects to. It would wait for an evaluator too, for ever.
_JOBS = ("chief", "worker", "ps")


def connect(
    resolver: tf.distribute.cluster_resolver.ClusterResolver | None,
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Chief: waits for the workers and parameter servers. These serve, and then end the process.

    Args:
        resolver: the resolver of the cluster; None for TF_CONFIG.

    Returns:
        The resolver of the chief.

    Raises:
        ValueError: when there is no cluster, a cluster without chief, worker or ps, and in an
            evaluator.
        TimeoutError: when some processes cannot be reached; the message names them.
        SystemExit: in workers and parameter servers, when the chief has ended.
    """
    cluster = Cluster.from_environment() if resolver is None else _cluster_of(resolver)
    if cluster is None:
        raise ValueError(
            "A parameter server job has a chief, workers and parameter servers: start the script "
            "with `tfdist run -n 3 --ps 1`, set TF_CONFIG in each process, or pass a "
            "`cluster_resolver`, such as from `tfdist.cluster.local_cluster()`. "
            "Received: no TF_CONFIG"
        )

    if cluster.task_type == "evaluator":
        raise ValueError(
            "An evaluator is not part of the cluster that trains. Make the strategy with "
            '`tfdist.Strategy("parameter_server")`, which means this machine\'s devices there, or '
            "none at all, and evaluate with `tfdist.SidecarEvaluator`. Received: task=evaluator 0"
        )
    check_parameter_server_cluster(cluster)
    others = [*cluster.jobs["worker"], *cluster.jobs["ps"], *cluster.jobs["chief"]]
    os.environ.update(without_proxy(os.environ, others))
    if cluster.task_type in ("worker", "ps"):
        serve(cluster)
        raise SystemExit(0)
    if cluster.address not in _served:
        wait_for_servers(cluster)
        vanishing.watch(others)
        _served.add(cluster.address)
    if resolver is not None and set(resolver.cluster_spec().jobs) == set(_JOBS):
        return resolver
    jobs = {job: list(cluster.jobs[job]) for job in _JOBS}
    layer = (resolver and resolver.rpc_layer) or "grpc"
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer=layer
    )


_open = contextlib.ExitStack()


@functools.cache
def cluster_of_one_process(ps: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """A cluster for a replay, in the chief's process: one worker, however many were recorded.

    Args:
        ps: the number of parameter servers.
    """
    return _open.enter_context(local_cluster(workers=1, ps=ps))


def _cluster_of(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Cluster:
    jobs = {job: tuple(tasks) for job, tasks in resolver.cluster_spec().as_dict().items()}
    if "chief" not in jobs and not resolver.task_type:
        # As in TensorFlow: whoever makes a strategy for servers that run elsewhere is the chief.
        jobs["chief"] = (_own_address(frozenset(jobs.items())),)
    return Cluster(jobs, resolver.task_type or "chief", resolver.task_id or 0)


@functools.cache
def _own_address(jobs: frozenset) -> str:
    """An address for this process, the same each time for a cluster of the same `jobs`."""
    del jobs
    (port,) = _open.enter_context(reserved_ports(1))
    return f"{LOOPBACK}:{port}"
