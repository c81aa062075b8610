"""The exchanges of a worker: each is told to the reducers once, and used again and again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import tensorflow as tf

from tfdist import compat
from tfdist.strategies.multi_worker.reducers.exchange import Exchange, Pair, of_worker

# So many sums are under way at once: while one has only its last pieces to get back, the next one
# sends its first.
UNDER_WAY = 2

Sum = Callable[[tf.Tensor], tf.Tensor]
Kind = tuple[int, tf.DType]


class Exchanges:
    """All exchanges of a worker.

    A function that is traced takes one exchange for each of its sums. Other functions take the same
    ones: functions of a process run one after the other. What runs several times within a function,
    such as in a loop, waits for its turn.

    Args:
        rank: of the worker.
        reducers: the number of reducers.
    """

    def __init__(self, rank: int, reducers: int):
        self._pairs = [Pair(rank, number, reducers) for number in range(reducers)]
        self._tells = rank == 0
        self._told = 0
        self._next_number = 0
        self._turns = [compat.plain_variable(tf.zeros([])) for _ in range(UNDER_WAY)]
        self._known: dict[Kind, list[Sum]] = {}
        # What the function that is traced has taken of each kind.
        self._taken: dict[Kind, int] = {}
        self._function: Callable[[], object] = lambda: None

    def next(self, elements: int, dtype: tf.DType) -> Sum:
        """The next sum of this kind, in the function that is traced.

        Args:
            elements: the length of the vectors.
            dtype: their dtype.
        """
        function = compat.outermost_graph()
        if self._function() is not function:
            self._function, self._taken = weakref.ref(function), {}
        kind = elements, dtype
        known, place = self._known.setdefault(kind, []), self._taken.get(kind, 0)
        self._taken[kind] = place + 1
        if place == len(known):
            known.append(self._made(elements, dtype))
        return known[place]

    def _made(self, elements: int, dtype: tf.DType) -> Sum:
        """A new exchange, which the first worker tells the reducers."""
        exchange = Exchange(self._next_number, elements, dtype, len(self._pairs))
        turn = self._turns[self._told % UNDER_WAY]
        if self._tells:
            with tf.init_scope():
                for pair in self._pairs:
                    pair.tell(exchange, self._told)
        self._told += 1
        self._next_number += exchange.numbers

        # In a loop TensorFlow numbers messages by their turn, which reducers do not know. A
        # function that is not inlined has numbers of its own.
        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def summed(vector: tf.Tensor) -> tf.Tensor:
            # Functions that change the same variable run one after the other.
            turn.assign_add(1.0)
            return of_worker(exchange, vector, self._pairs)

        return summed


@functools.cache
def exchanges_of(rank: int, reducers: int) -> Exchanges:
    """The exchanges of this process, which all of its strategies share."""
    with tf.init_scope(), tf.device("CPU:0"):
        return Exchanges(rank, reducers)
