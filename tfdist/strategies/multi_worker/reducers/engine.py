"""The engine of workers whose gradients are summed by reducers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.engines.contract import Value
from tfdist.engines.processes import Processes
from tfdist.engines.replica_context import check_unconditional
from tfdist.limits import LEAST_FOR_REDUCERS
from tfdist.strategies.multi_worker.engine import CollectivesEngine
from tfdist.strategies.multi_worker.reducers.exchange import DTYPES
from tfdist.strategies.multi_worker.reducers.exchanges import Exchanges, exchanges_of


class ReducersEngine(CollectivesEngine):
    """TensorFlow's collective operations, with sums of long vectors by reducers.

    Args:
        processes: the workers.
        largest_message: as in `Engine`.
        few_rounds: as in `CollectivesEngine`.
        reducers: the number of reducers.
    """

    def __init__(self, processes: Processes, largest_message: int, few_rounds: bool, reducers: int):
        super().__init__(processes, largest_message, on_cpus=True, few_rounds=few_rounds)
        # Threads would trace, and so number, their exchanges in another order on each rank.
        self.runs_beside_steps = False
        self._exchanges = exchanges_of(processes.rank, reducers)

    @tf.autograph.experimental.do_not_convert
    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums: of long dense vectors by the reducers, of others between the workers."""
        return sums_with_reducers(self._exchanges, values, super().all_reduce)


def sums_with_reducers(
    exchanges: Exchanges, values: Sequence[Value], between: Callable[[list[Value]], list[Value]]
) -> list[Value]:
    """The sums over the workers: of long dense vectors by the reducers.

    Args:
        exchanges: of this worker.
        values: what this worker adds.
        between: sums others between the workers.
    """
    by_reducers = {place for place, value in enumerate(values) if _is_long(value)}
    others = [value for place, value in enumerate(values) if place not in by_reducers]
    sums = iter(between(others) if others else [])
    return [
        _sum_by_reducers(exchanges, value) if place in by_reducers else next(sums)
        for place, value in enumerate(values)
    ]


def _is_long(value: Value) -> bool:
    """Whether reducers sum a value; the workers agree, as shapes and dtypes are equal."""
    if tf.executing_eagerly() or isinstance(value, tf.IndexedSlices):
        return False
    if value.dtype not in DTYPES or not value.shape.is_fully_defined():
        return False
    return value.shape.num_elements() * value.dtype.size >= LEAST_FOR_REDUCERS


def _sum_by_reducers(exchanges: Exchanges, value: tf.Tensor) -> tf.Tensor:
    """The sum; its gradient is the gradients' sum."""
    again = functools.partial(_sum_by_reducers, exchanges)

    @tf.custom_gradient
    def summed(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        check_unconditional()
        exchanged = exchanges.next(value.shape.num_elements(), value.dtype)
        total = exchanged(tf.reshape(value, [-1]))
        return tf.reshape(total, value.shape), again

    return summed(tf.convert_to_tensor(value))
