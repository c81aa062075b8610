"""What a process does first in a cluster with reducers: workers go on, reducers serve."""

from __future__ import annotations

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.compat.groups import look_after_workers
from tfdist.options import Options
from tfdist.strategies.multi_worker.reducers.serving import serve


def joined_reducers(cluster: Cluster | None, options: Options) -> int:
    """The number of reducers, for a worker; a reducer serves, and then ends its process.

    Args:
        cluster: the cluster; None for a process on its own.
        options: of the strategy.

    Raises:
        ValueError: when the reducers would have nothing to do, or nothing that they can.
        SystemExit: in a reducer, when the chief has ended.
    """
    reducers = len(cluster.jobs.get("reducer", ())) if cluster is not None else 0
    if cluster is None or not reducers:
        return 0
    if cluster.size < 2:
        raise ValueError(
            "Reducers sum what several workers send them. Leave out the reducers, or start more "
            f"workers. Received: {reducers} reducers, {cluster.size} worker"
        )
    check_options(options, reducers)
    if cluster.task_type == "reducer":
        serve(cluster)
        raise SystemExit(0)
    look_after_workers(cluster.jobs)
    return reducers


def check_options(options: Options, reducers: int) -> None:
    """Raises ValueError for options with which reducers have nothing to sum."""
    if options.exchange != "auto":
        raise ValueError(
            "With reducers long vectors are summed by them, and `exchange` must be 'auto'. Leave "
            f"out the reducers, or `exchange`. Received: exchange={options.exchange!r}, "
            f"{reducers} reducers"
        )
    for name in ("sharding", "local"):
        chosen = getattr(options, name)
        if chosen is not None:
            raise ValueError(
                f"Reducers sum whole gradients in each step, which `{name}` does not do. Leave out "
                f"the reducers, or `{name}`. Received: {name}={chosen!r}, {reducers} reducers"
            )


def check_devices(strategy: tf.distribute.Strategy, reducers: int) -> None:
    """Raises ValueError if this worker has several devices, as reducers know workers only."""
    devices = len(strategy.extended.worker_devices)
    if reducers and devices > 1:
        raise ValueError(
            "With reducers each worker has one device. Start more workers instead. "
            f"Received: {devices} devices in this worker, {reducers} reducers"
        )
