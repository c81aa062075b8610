"""The engine of workers whose gradients are summed by reducers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Value
from tfdist.engines.processes import Processes
from tfdist.engines.replica_context import check_unconditional
from tfdist.strategies.multi_worker.engine import CollectivesEngine
from tfdist.strategies.multi_worker.reducers.exchange import DTYPES, Exchange, Pair, of_worker

# Fewer bytes travel as without reducers: they take few rounds there, and no time on the link.
SMALLEST_BYTES = 64 * 1024
# So many sums are under way at once: while one has only its last pieces to get back, the next one
# sends its first.
UNDER_WAY = 2


class ReducersEngine(CollectivesEngine):
    """TensorFlow's collective operations, with sums of long vectors by reducers.

    Args:
        processes: the workers.
        largest_message: as in `Engine`.
        gathered: as in `CollectivesEngine`.
        reducers: the number of reducers.
    """

    def __init__(self, processes: Processes, largest_message: int, gathered: int, reducers: int):
        super().__init__(processes, largest_message, on_cpus=True, gathered=gathered)
        self._pairs = [Pair(processes.rank, number, reducers) for number in range(reducers)]
        # Those that the reducers know, by what is summed: the functions of a strategy that never
        # run at the same time, such as an old and a new trace of a step, use the same ones.
        self._known: dict[tuple[int, tf.DType], list[Callable[[tf.Tensor], tf.Tensor]]] = {}
        self._exchanges = 0
        self._next_number = 0
        self._turns = [compat.plain_variable(tf.zeros([])) for _ in range(UNDER_WAY)]
        # How many of each kind the graph that is traced has.
        self._used: dict[tuple[int, tf.DType], int] = {}
        self._graph: object = None

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums: of long dense vectors by the reducers, of others between the workers."""
        by_reducers = {place for place, value in enumerate(values) if self._is_long(value)}
        others = [value for place, value in enumerate(values) if place not in by_reducers]
        sums = iter(super().all_reduce(others) if others else [])
        return [
            self._sum_by_reducers(value) if place in by_reducers else next(sums)
            for place, value in enumerate(values)
        ]

    def _is_long(self, value: Value) -> bool:
        """Whether reducers sum a value. All workers see the same."""
        if tf.executing_eagerly() or isinstance(value, tf.IndexedSlices):
            return False
        if value.dtype not in DTYPES or not value.shape.is_fully_defined():
            return False
        return value.shape.num_elements() * value.dtype.size >= SMALLEST_BYTES

    def _sum_by_reducers(self, value: tf.Tensor) -> tf.Tensor:
        """The sum; its gradient is the gradients' sum."""

        @tf.custom_gradient
        def summed(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            check_unconditional()
            exchanged = self._next(value.shape.num_elements(), value.dtype)
            return tf.reshape(
                exchanged(tf.reshape(value, [-1])), value.shape
            ), self._sum_by_reducers

        return summed(tf.convert_to_tensor(value))

    def _next(self, elements: int, dtype: tf.DType) -> Callable[[tf.Tensor], tf.Tensor]:
        """The next exchange of this kind in the graph that is traced."""
        graph = compat.outermost_graph()
        if graph is not self._graph:
            self._graph, self._used = graph, {}
        kind = elements, dtype
        known = self._known.setdefault(kind, [])
        place = self._used.get(kind, 0)
        self._used[kind] = place + 1
        if place == len(known):
            known.append(self._made(elements, dtype))
        return known[place]

    def _made(self, elements: int, dtype: tf.DType) -> Callable[[tf.Tensor], tf.Tensor]:
        """A new exchange, which the reducers are told of."""
        exchange = Exchange(self._next_number, elements, dtype, len(self._pairs))
        turn = self._turns[self._exchanges % UNDER_WAY]
        if self.processes.is_chief:
            with tf.init_scope():
                for pair in self._pairs:
                    pair.tell(exchange, self._exchanges)
        self._exchanges += 1
        self._next_number += exchange.numbers

        # In a loop TensorFlow numbers messages by their turn, which reducers do not know. A
        # function that is not inlined has numbers of its own.
        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def exchanged(vector: tf.Tensor) -> tf.Tensor:
            # Functions that change the same variable run one after the other.
            turn.assign_add(1.0)
            return of_worker(exchange, vector, self._pairs)

        return exchanged
