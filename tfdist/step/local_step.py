"""Marks the training step of a user's own loop, where replicas train apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.arguments import check_callable, check_instance
from tfdist.structures import Structure

_MARK = "tfdist_local_step"


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """A training step of a user's own loop.

    Attributes:
        step: the function that `strategy.run` calls on each replica.
        model: the model whose variables the step may set; None for none besides the weights.
        owner: the function that is marked. Others may have its attributes: `functools.wraps`
            copies them, and a method has those of its function.
    """

    step: Callable
    model: keras.Model | None
    owner: Callable | None = None


def marked(function: Callable) -> LocalStep | None:
    """What `local_step` has marked as a training step; None for any other function."""
    mark: LocalStep | None = getattr(function, _MARK, None)
    if mark is None:
        return None
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        is_own = mark.owner is function.python_function
        return LocalStep(function, mark.model) if is_own else None
    return mark if mark.owner is function else None


def local_step(step: Callable, model: keras.Model | None = None) -> Callable:
    """Says that a function is a training step: `strategy.run(tfdist.local_step(step), args=...)`.

    With the option `local` of a strategy, each replica trains apart in such a step, and averages
    with the others at the end of a round. In `fit` tfdist knows the training step; in a loop of
    your own it cannot tell whether a function trains or evaluates. Without `local` the function
    runs as it is, so one script serves both.

    In the step, take the mean loss over the replica's samples. Call `optimizer.finish_round()`
    before you look at the weights, evaluate or save.

    Args:
        step: the function that `strategy.run` calls on each replica. It applies a
            `tfdist.DistributedOptimizer`.
        model: the model whose variables the step sets besides the weights that it trains, such as
            the moving statistics of BatchNormalization, or a teacher's weights. They become equal
            where the replicas meet. A step that sets floating-point variables of no such model
            raises ValueError.

    Raises:
        TypeError: when `step` is no function, or `model` no `keras.Model`.

    Example:

    >>> import keras, numpy as np, tensorflow as tf, tfdist
    >>> strategy = tfdist.MirroredStrategy(local=tfdist.LocalSGD(steps=4))
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
    ...     optimizer.build(model.trainable_variables)
    >>> def step(x, y):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
    ...     variables = model.trainable_variables
    ...     optimizer.apply(tape.gradient(loss, variables), variables)
    >>> train_step = tf.function(lambda x, y: strategy.run(tfdist.local_step(step), args=(x, y)))
    >>> batch = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    >>> data = tf.data.Dataset.from_tensors(batch).unbatch().batch(4)
    >>> for x, y in strategy.experimental_distribute_dataset(data):
    ...     train_step(x, y)
    >>> optimizer.finish_round()
    >>> int(optimizer.iterations.numpy())
    2
    """
    check_callable("step", step)
    if model is not None:
        check_instance("model", model, keras.Model, "a keras.Model, or None")

    def training_step(*args: Structure, **kwargs: Structure) -> Structure:
        return step(*args, **kwargs)

    setattr(training_step, _MARK, LocalStep(step, model, training_step))
    return training_step
