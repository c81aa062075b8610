"""Which cluster this process is in, and the wait for the other workers of it."""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.cluster import Cluster, describe, wait_for_peers
from tfdist.cluster.addresses import without_proxy
from tfdist.cluster.environments import has_reducers, wants_reducers
from tfdist.strategies.multi_worker.reducers.under_horovodrun import cluster_with_reducers

_joined: list[Cluster] = []
_meshes: list[Cluster] = []


def join(cluster: Cluster, for_mesh: bool = False) -> bool:
    """Waits for the other workers, only once: all strategies of a process share the cluster.

    Args:
        cluster: the cluster.
        for_mesh: whether a mesh is made, which connects the workers in a way of its own.

    Returns:
        Whether it was the first call.

    Raises:
        ValueError: for another cluster than before; for a strategy after a mesh.
        TimeoutError: when other workers cannot be reached.
    """
    is_first = not _joined
    if is_first:
        reducers = cluster.jobs.get("reducer", ())
        everyone = (*cluster.workers, *reducers)
        os.environ.update(without_proxy(os.environ, everyone))
        wait_for_peers(everyone, rank_of(cluster), reducers=len(reducers))
        _joined.append(cluster)
        if for_mesh:
            _meshes.append(cluster)
    if cluster != _joined[0]:
        raise ValueError(
            "All strategies of a process must be in one cluster. "
            f"Received: {cluster}, after {_joined[0]}"
        )
    if _meshes and not for_mesh:
        raise ValueError(
            "A mesh has connected the workers of this process. Train in `mesh.strategy().scope()`, "
            "or make the strategy before the mesh. Received: a strategy of several workers"
        )
    return is_first


def cluster_of_process() -> Cluster | None:
    """The cluster that the environment describes; None for a process on its own."""
    launch = describe()
    if wants_reducers() and not has_reducers(launch):
        return cluster_with_reducers(launch)
    cluster = launch.cluster or Cluster.from_environment()
    if cluster is None and launch.size > 1:
        raise ValueError(
            f"{launch.launcher} started this process as one of {launch.size}, but without "
            "TF_CONFIG they would train apart. Use `tfdist.Strategy('horovod')`, or start the "
            f"script with `tfdist run` or with TF_CONFIG. Received: {dict(launch.variables)}"
        )
    return cluster


def cluster_of(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Cluster | None:
    """The cluster that a resolver describes; None for a process on its own."""
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    if resolver.task_type is None or resolver.task_id is None:
        raise ValueError(
            "The cluster resolver must say which task this process is. "
            f"Received: task_type={resolver.task_type!r}, task_id={resolver.task_id!r}"
        )
    tasks = {job: tuple(addresses) for job, addresses in jobs.items()}
    return Cluster(tasks, resolver.task_type, resolver.task_id)


def rank_of(cluster: Cluster) -> int:
    """The rank of this process; ValueError if it is none that trains."""
    if cluster.rank is None:
        raise ValueError(
            "Synchronous training is done by the tasks `chief` and `worker`. "
            f"Received: a process that is {cluster.task_type} {cluster.task_index}"
        )
    return cluster.rank
