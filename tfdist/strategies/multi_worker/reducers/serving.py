"""The life of a reducer: it sums for the workers until the chief has ended."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.cluster import Cluster, chief, vanishing, wait_for_peers
from tfdist.cluster.addresses import without_proxy
from tfdist.cluster.peers import connect_timeout
from tfdist.compat.groups import join_as_reducer
from tfdist.strategies.multi_worker.reducers.exchange import Cut, of_reducer
from tfdist.strategies.multi_worker.reducers.told import Told, await_told, pair_of

# How operations fail when a worker has ended.
_GONE = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError)


def serve(cluster: Cluster) -> None:
    """Sums until the chief has ended.

    Args:
        cluster: the cluster, in which this process is a reducer.

    Raises:
        OSError: in one line, when the port of this process is in use.
        TimeoutError: in one line, when a process cannot be reached.
    """
    everyone = (*cluster.workers, *cluster.jobs["reducer"])
    os.environ.update(without_proxy(os.environ, everyone))
    reducers = len(cluster.jobs["reducer"])
    wait_for_peers(everyone, cluster.size + cluster.task_index, reducers=reducers)
    join_as_reducer(cluster.jobs, cluster.task_index)
    vanishing.watch(everyone)
    reducer = _Reducer(cluster)
    threading.Thread(target=reducer.listen, daemon=True).start()
    chief.wait_for_end(everyone[0], connect_timeout())
    reducer.has_ended.set()


class _Reducer:
    """Sums in a thread for each exchange: all are waited for at the same time.

    Args:
        cluster: the cluster.

    Attributes:
        has_ended: set once the chief has ended.
    """

    def __init__(self, cluster: Cluster):
        self.has_ended = threading.Event()
        self._functions: dict[Cut, Callable[[tf.Tensor], tf.Tensor]] = {}
        self._tracing = threading.Lock()
        self._name = f"reducer {cluster.task_index} ({cluster.address})"
        self._number, self._reducers = cluster.task_index, len(cluster.jobs["reducer"])
        self._pairs = [pair_of(r, self._number, self._reducers) for r in range(cluster.size)]

    def listen(self) -> None:
        """Begins to sum what the chief tells of."""
        place = 0
        while not self.has_ended.is_set():
            try:
                told = await_told(self._pairs[0], self._reducers, place)
            except tf.errors.OpError as error:
                return self._end(error)
            place += 1
            if told.cut.length(0, self._number):
                threading.Thread(target=self._sum, args=[told], daemon=True).start()

    def _sum(self, told: Told) -> None:
        step, first = self._function(told.cut), tf.constant(told.first)
        while not self.has_ended.is_set():
            try:
                step(first)
            except tf.errors.OpError as error:
                return self._end(error)

    def _function(self, cut: Cut) -> Callable[[tf.Tensor], tf.Tensor]:
        """What sums, for all exchanges of a kind."""
        with self._tracing:
            if cut not in self._functions:
                step = functools.partial(of_reducer, cut, pairs=self._pairs)
                function = tf.function(step, autograph=False)
                self._functions[cut] = function.get_concrete_function(tf.TensorSpec([], tf.int32))
            return self._functions[cut]

    def _end(self, error: tf.errors.OpError) -> None:
        """Waits for the end of the chief, if a worker is gone; else ends with an error.

        A worker may have done its work before the chief has. If it was lost, the others say so.
        """
        if isinstance(error, _GONE):
            tf.get_logger().debug("tfdist: %s has lost a worker: %s", self._name, error.message)
        elif not self.has_ended.is_set():
            why = f"Has a worker left a step by an error, and gone on? {error.message}"
            print(f"{self._name} cannot sum. {why}", file=sys.stderr, flush=True)
            os._exit(1)
