"""The life of a reducer: it sums for the workers until the chief has ended."""

from __future__ import annotations

import os

from tfdist.cluster import Cluster, chief, vanishing, wait_for_peers
from tfdist.cluster.addresses import without_proxy
from tfdist.cluster.peers import connect_timeout
from tfdist.compat.groups import join_as_reducer
from tfdist.strategies.multi_worker.reducers.reducer import Reducer, ends_with_others
from tfdist.strategies.multi_worker.reducers.told import pair_of


def serve(cluster: Cluster) -> None:
    """Sums until the chief has ended.

    Args:
        cluster: the cluster, in which this process is a reducer.

    Raises:
        OSError: in one line, when the port of this process is in use.
        TimeoutError: in one line, when a process cannot be reached.
    """
    ends_with_others()
    everyone = (*cluster.workers, *cluster.jobs["reducer"])
    os.environ.update(without_proxy(os.environ, everyone))
    reducers = len(cluster.jobs["reducer"])
    wait_for_peers(everyone, cluster.size + cluster.task_index, reducers=reducers)
    join_as_reducer(cluster.jobs, cluster.task_index)
    vanishing.watch(everyone)
    number = cluster.task_index
    pairs = [pair_of(rank, number, reducers) for rank in range(cluster.size)]
    reducer = Reducer(pairs, reducers, f"reducer {number} ({cluster.address})")
    reducer.begin()
    chief.wait_for_end(everyone[0], connect_timeout())
    reducer.has_ended.set()
