"""A reducer: it sums for a group of workers, until that group is no more."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.strategies.multi_worker.reducers.exchange import Cut, Pair, of_reducer
from tfdist.strategies.multi_worker.reducers.told import Told, await_told

# How operations fail when a worker has ended.
_GONE = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError)


def ends_with_others() -> None:
    """Lets this process go on at Ctrl-C, which the workers get too: it ends with them.

    They come to the end of a step, for which they need it, and save their state. A second Ctrl-C
    ends this process.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, signal.SIG_DFL))


class Reducer:
    """Sums in a thread for each exchange: all are waited for at the same time.

    Args:
        pairs: each worker and this reducer.
        reducers: the number of reducers.
        name: of this reducer, in messages.

    Attributes:
        has_ended: set once there is nothing to sum any more.
    """

    def __init__(self, pairs: Sequence[Pair], reducers: int, name: str):
        self.has_ended = threading.Event()
        self._functions: dict[Cut, Callable[[tf.Tensor], tf.Tensor]] = {}
        self._tracing = threading.Lock()
        self._pairs, self._reducers, self._name = pairs, reducers, name
        self._summing: list[threading.Thread] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def begin(self) -> None:
        """Begins to sum, in threads."""
        self._listening.start()

    def wait(self) -> None:
        """Waits for the threads, once their operations fail."""
        if self._listening.ident is not None:  # it has begun
            self._listening.join()
        for thread in self._summing:
            thread.join()

    def _listen(self) -> None:
        """Begins to sum what the first worker tells of."""
        place = 0
        while not self.has_ended.is_set():
            try:
                told = await_told(self._pairs[0], self._reducers, place)
            except tf.errors.OpError as error:
                return self._end(error)
            place += 1
            if told.cut.length(0, self._pairs[0].reducer):
                thread = threading.Thread(target=self._sum, args=[told], daemon=True)
                self._summing.append(thread)
                thread.start()

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
        """Ends this process with an error, unless a worker is gone.

        A worker may have done its work before the first one has. If it was lost, others say so.
        """
        if isinstance(error, _GONE):
            tf.get_logger().debug("tfdist: %s has lost a worker: %s", self._name, error.message)
        elif not self.has_ended.is_set():
            why = f"Has a worker left a step by an error, and gone on? {error.message}"
            print(f"{self._name} cannot sum. {why}", file=sys.stderr, flush=True)
            os._exit(1)
