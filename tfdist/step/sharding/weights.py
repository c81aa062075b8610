"""Weights of which each replica keeps a part: how they are made, read, gathered and set.

After Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(SC 2020), section 5.3, and Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel" (VLDB 2023).

Reading a weight gathers its parts. The gradient of the whole weight, of which each replica has one,
is summed over the replicas in the backward pass, and each replica gets its part. So `tape.gradient`
gives parts of sums. That is right wherever and however often a weight is read. That a whole weight
does not stay in memory until the backward pass is the task of `gathered_again.py`.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.checksum import checksum
from tfdist.engines.contract import Value
from tfdist.engines.replica_context import check_unconditional, static_id
from tfdist.options import Options
from tfdist.step import replica
from tfdist.step.exchange import timed_rows
from tfdist.step.gradient_weight import weight_before_sum
from tfdist.step.gradients import may_be_asked_for
from tfdist.step.sharding import first_values, gathered_again, read_together, watching
from tfdist.step.sharding.exchange import all_gather, reduce_scatter
from tfdist.step.sharding.parts import Parts
from tfdist.step.sharding.totals import check_tables
from tfdist.step.weighting import weigh

# A weight is gathered by one operation, unless the engine wants smaller ones.
_WHOLE = 2**62
_NUMBERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def keeps_parts(strategy: tf.distribute.Strategy) -> bool:
    """Whether the replicas of a strategy keep parts of the weights."""
    return Options.of(strategy).sharded(strategy.num_replicas_in_sync) == "parameters"


def make(variable: keras.Variable, initializer: Callable) -> bool:
    """Makes a variable in parts, if it is a weight that is large enough; returns whether it did.

    The first value is that of one device with the same seed; see `first_values.py`.

    Raises:
        ValueError: in replica context, where processes cannot agree on the first value.
    """
    strategy = tf.distribute.get_strategy()
    if not _is_divided(variable, strategy):
        return False
    if tf.distribute.get_replica_context() is not None:
        raise ValueError(
            'With `sharding="parameters"` layers are built before the first step. Give the model '
            "an `Input`, or call its `build`, in `strategy.scope()`. Received: the weight "
            f"{variable.path}, which a step makes"
        )
    spec = tf.TensorSpec(variable.shape, compat.stored_dtype(variable))
    parts = Parts.of(spec, strategy.num_replicas_in_sync)
    with tf.init_scope():
        kept = tf.Variable(
            lambda: tf.zeros(parts.part_shape, spec.dtype),
            dtype=spec.dtype,
            trainable=True,
            name=variable.name,
        )
        _keep(strategy, kept, first_values.by_part(strategy.processes, initializer, parts))
    compat.shard(variable, kept, parts, ShardedWeights(strategy))
    return True


def _is_divided(variable: keras.Variable, strategy: tf.distribute.Strategy) -> bool:
    return type(variable) is keras.Variable and keeps_parts(strategy) and may_be_divided(variable)


def may_be_divided(variable: keras.Variable) -> bool:
    """Whether replicas may keep parts of a variable: of weights with two dimensions or more.

    Biases and scales are small. They stay whole, and so does what is made with `trainable=False`.
    That is decided when a variable is made: a weight that is frozen stays in parts.
    """
    return bool(variable.trainable) and is_large(variable)


def is_large(variable: keras.Variable) -> bool:
    """Whether replicas may keep parts of a variable if it is made to be trained."""
    return (
        len(variable.shape) >= 2
        and all(variable.shape)
        and compat.stored_dtype(variable).is_floating
        and variable.aggregation == "none"
    )


def _keep(
    strategy: tf.distribute.Strategy, kept: tf.Variable, part: Callable[[int], tf.Tensor]
) -> None:
    """Sets the parts of this process' replicas, `part(replica_id)`; in cross-replica context."""
    copies = strategy.experimental_local_results(kept)
    first = strategy.processes.rank * len(copies)
    for replica_id, copy in enumerate(copies, start=first):
        copy.assign(part(replica_id))


class ShardedWeights:
    """Reads and sets weights in parts, for the variables of one strategy.

    Args:
        strategy: keeps the parts.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        # All processes make weights in one order, but may name them differently.
        self._number = next(_NUMBERS.setdefault(strategy, itertools.count()))

    def whole(self, variable: compat.ShardedVariable) -> tf.Tensor:
        """The whole weight; in replica context an operation of all replicas.

        Elsewhere it has no gradient, and all processes must ask for it.
        """
        if self._in_replica():
            return gathered_again.read(variable, _gathered, _linked)
        if variable.at_hand is not None:
            return tf.constant(variable.at_hand())
        step = replica.current()
        traced = step is not None and not step.exchanges
        return _outside(variable, self._first_part(variable), self._read(variable), traced)

    def numpy(self, variable: compat.ShardedVariable) -> np.ndarray:
        """The whole weight; all processes must ask for it, and outside of steps."""
        if variable.at_hand is not None:
            return variable.at_hand()
        with tf.init_scope():
            return self._read(variable).numpy()

    def assign(self, variable: compat.ShardedVariable, value: tf.Tensor) -> None:
        """Keeps the parts of a whole weight, which is the same in all processes."""
        kept, parts = compat.stored(variable), variable.parts
        value = tf.cast(value, kept.dtype)
        if self._in_replica():
            copies = self._strategy.experimental_local_results(kept)
            check_unconditional()  # before it each replica has read what was set before
            copies[static_id() % len(copies)].assign(parts.kept_part(value, static_id()))
            check_unconditional()
            gathered_again.note_set([variable])
            return
        _keep(self._strategy, kept, functools.partial(parts.kept_part, value))
        if tf.executing_eagerly() and not self._strategy.processes.is_alone:
            variable.set_to = int(checksum(value))
        if variable.takes is not None:
            variable.takes(value.numpy())
        else:
            variable.times_set += 1
            variable.read_alone = None  # this value counts

    def _in_replica(self) -> bool:
        context = tf.distribute.get_replica_context()
        return context is not None and context.strategy is self._strategy

    def _first_part(self, variable: compat.ShardedVariable) -> tf.Tensor:
        return self._strategy.experimental_local_results(compat.stored(variable))[0].read_value()

    def _read(self, variable: compat.ShardedVariable) -> tf.Tensor:
        """The whole weight, in cross-replica context or outside of the strategy's scope."""
        copies = self._strategy.experimental_local_results(compat.stored(variable))
        parts = variable.parts
        if len(copies) == parts.replicas:
            return parts.joined(tf.concat([tf.reshape(c, [-1]) for c in copies], axis=0))
        if tf.executing_eagerly():
            return tf.constant(read_together.read(self._strategy, variable, self._number))
        with self._strategy.scope():
            gathered = self._strategy.extended.call_for_each_replica(_gathered, args=(variable, ()))
        return self._strategy.experimental_local_results(gathered)[0]


def _own_part(variable: compat.ShardedVariable) -> tf.Tensor:
    return tf.convert_to_tensor(compat.stored(variable))


@tf.autograph.experimental.do_not_convert
def _gathered(variable: compat.ShardedVariable, after: Sequence[tf.Tensor]) -> tf.Tensor:
    """The whole weight, gathered after the tensors `after` are there; in replica context.

    Replicas do not meet here. Layers may keep something in Python while they are called, such as
    losses and masks, and a layer that another replica has begun to call would mix it up. After an
    update replicas do meet, so each one reads what all others have set.
    """
    parts = variable.parts
    copies = tf.distribute.get_strategy().experimental_local_results(compat.stored(variable))
    with compat.unrecorded(), tf.control_dependencies(list(after)):
        if len(copies) == parts.replicas:
            flat = [tf.reshape(copy.read_value(), [parts.length]) for copy in copies]
            return parts.joined(tf.concat(flat, axis=0))
        part = tf.identity(_own_part(variable))
        return all_gather([part], [parts], _WHOLE, in_turn=True)[0]


def _linked(variable: compat.ShardedVariable, whole: tf.Tensor) -> tf.Tensor:
    """`whole`, of which the gradient by this replica's part is the part of a sum."""

    @tf.custom_gradient
    def linked(part: tf.Tensor, whole: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        del part
        return tf.identity(whole), lambda gradient: (_part_of_sum(variable, gradient), None)

    return linked(_own_part(variable), whole)


def _part_of_sum(variable: compat.ShardedVariable, gradient: Value) -> Value:
    """This replica's part of the sum of the replicas' gradients by a whole weight."""
    parts = variable.parts
    if not may_be_asked_for(variable):
        return tf.zeros(parts.part_shape, parts.dtype)  # nobody has asked for it
    watching.note(variable, gradient)
    weight = weight_before_sum(variable)
    if weight is not None:
        gradient = weigh(gradient, weight)
    if isinstance(gradient, tf.IndexedSlices):
        check_tables([variable.path], [parts])
        rows = parts.rows_of_part(timed_rows([gradient])[0], static_id())
        gathered_again.note_sum(rows.values)
        return rows
    dense = tf.cast(tf.convert_to_tensor(gradient), parts.dtype)
    summed = reduce_scatter([dense], [parts], _WHOLE)[0]
    gathered_again.note_sum(summed)
    return summed


def _outside(
    variable: compat.ShardedVariable, part: tf.Tensor, whole: tf.Tensor, traced: bool
) -> tf.Tensor:
    """`whole`, read outside of replicas.

    Args:
        variable: the weight.
        part: what a tape that is to take the gradient by the weight looks for.
        whole: the weight.
        traced: whether a step is only traced, so that its gradients need the right shapes only.
    """

    def gradient(of: Value) -> tuple[tf.Tensor, None]:
        del of
        if not traced and may_be_asked_for(variable):
            raise ValueError(
                'With `sharding="parameters"` gradients by weights are taken in the function that '
                "is passed to `strategy.run`, where all replicas take them together. Received: a "
                "gradient outside of replicas"
            )
        return tf.zeros_like(part), None

    @tf.custom_gradient
    def read(part: tf.Tensor, whole: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        del part
        return tf.identity(whole), gradient

    return read(part, tf.stop_gradient(whole))
