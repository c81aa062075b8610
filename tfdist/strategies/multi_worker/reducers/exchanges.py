"""The exchanges of a worker: each is told to the reducers once, and used again and again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import tensorflow as tf

from tfdist import compat
from tfdist.strategies.multi_worker.reducers.exchange import Cut, of_worker
from tfdist.strategies.multi_worker.reducers.told import Told, pair_of, tell

# So many sums are under way at once: while one has only its last pieces to get back, the next one
# sends its first.
UNDER_WAY = 2

Sum = Callable[[tf.Tensor], tf.Tensor]


class Exchanges:
    """All exchanges of a worker.

    A function that is traced takes one exchange for each of its sums. Other functions take the same
    ones, also those that it calls or that call it. Sums of an exchange run one after the other, in
    the order of the program, which is the same in all workers. Which sum it is travels before it,
    and the reducers compare that.

    Args:
        rank: of the worker.
        reducers: the number of reducers.
        generation: as for `pair_of`.
    """

    def __init__(self, rank: int, reducers: int, generation: int = 0):
        self._pairs = [pair_of(rank, place, reducers, generation) for place in range(reducers)]
        self._tells = rank == 0
        self._told = 0
        self._next_number = 0
        with tf.init_scope(), tf.device("CPU:0"):
            self._turns = [compat.plain_variable(tf.zeros([])) for _ in range(UNDER_WAY)]
            self._count = compat.plain_variable(tf.constant(0))
        self._functions: dict[tuple[Cut, int], Callable[..., tf.Tensor]] = {}
        self._known: dict[Cut, list[Sum]] = {}
        # What each function has taken of each kind, while it is traced.
        self._taken: weakref.WeakKeyDictionary[tf.Graph, dict[Cut, int]]
        self._taken = weakref.WeakKeyDictionary()

    @property
    def number(self) -> int:
        """How many exchanges the reducers know."""
        return self._told

    def next(self, elements: int, dtype: tf.DType) -> Sum:
        """The next sum of this kind, in the function that is traced.

        Args:
            elements: the length of the vectors.
            dtype: their dtype.
        """
        cut = Cut(elements, dtype, len(self._pairs))
        taken = self._taken.setdefault(compat.innermost_function(), {})
        place = taken[cut] = taken.get(cut, -1) + 1
        known = self._known.setdefault(cut, [])
        if place == len(known):
            known.append(self._made(cut))
        return known[place]

    def _made(self, cut: Cut) -> Sum:
        """A new exchange, which the first worker tells the reducers."""
        told, place = Told(cut, self._next_number), self._told
        if self._tells:
            with tf.init_scope():
                tell(self._pairs, told, place)
        self._told += 1
        self._next_number += cut.numbers
        return functools.partial(self._sum, told, place % UNDER_WAY)

    def _sum(self, told: Told, turn: int, vector: tf.Tensor) -> tf.Tensor:
        count = tf.identity(self._count.assign_add(1))
        return self._function(told.cut, turn)(vector, tf.constant(told.first), count)

    def _function(self, cut: Cut, turn: int) -> Callable[..., tf.Tensor]:
        """What sums, for all exchanges of a kind."""
        if (cut, turn) in self._functions:
            return self._functions[cut, turn]

        # In a loop TensorFlow numbers messages by their turn, which reducers do not know. A
        # function that is not inlined has numbers of its own.
        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def summed(vector: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
            # Functions that change the same variable run one after the other.
            self._turns[turn].assign_add(1.0)
            return of_worker(cut, vector, first, count, self._pairs)

        self._functions[cut, turn] = summed
        return summed


@functools.cache
def exchanges_of(rank: int, reducers: int) -> Exchanges:
    """The exchanges of this process, which all of its strategies share."""
    return Exchanges(rank, reducers)
