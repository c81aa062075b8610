"""Traces the passes of one replica, and makes copies of optimizers."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

from tfdist.memory.liveness import Walk, origin
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.structures import Structure

# Any learning rate that changes nothing much: a copy of an optimizer may make some updates.
_RATE = 1e-6

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """The bytes of a step of one replica.

    Attributes:
        gradients: of all gradients; of a sparse one, of its rows.
        walk: of the two passes; None if they were not traced.
        makers: the operations that make gradients.
    """

    gradients: int
    walk: Walk | None = None
    makers: Sequence[tf.Operation] = ()

    def activations(self, sums: float = 0.0, part: float = 1.0) -> int:
        """The most bytes beside the gradients and their sums.

        In the passes, or in the update, in which TensorFlow computes a new tensor for each variable
        before it adds them to the variables.

        Args:
            sums: the bytes of the sums over the replicas, as a part of those of the gradients.
            part: the part of the variables that a replica updates.
        """
        if self.walk is None:
            return 0
        most = self.walk.peak_bytes(dict.fromkeys(self.makers, 1.0 + sums))
        return max(most - round((1.0 + sums) * self.gradients), round(part * self.gradients))


def out_of_scopes(function: Callable[[], _T]) -> _T:
    """What `function` returns, in a thread of its own: no strategy's scope is entered there.

    In a scope of several processes, to make a variable is an operation of all of them.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def trace(model: keras.Model, inputs: Structure) -> TracedStep:
    """The passes of `model` for one batch; nothing is computed, and nothing of the model changes.

    The loss is the mean of the logarithms of each output's softmax. It needs about as many bytes as
    a cross entropy does. Other losses need fewer.

    Args:
        model: a built model.
        inputs: what the model is called with: `tf.TensorSpec`s without unknown sizes.
    """
    given = [model.trainable_variables, model.non_trainable_variables]
    specs = [[tf.TensorSpec(v.shape, v.dtype) for v in variables] for variables in given]
    mode = {"training": True} if takes_training(model) else {}
    found: list[tf.Tensor] = []

    @tf.function(autograph=False)
    def passes(trained: list[tf.Tensor], others: list[tf.Tensor], batch: Structure) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(trained)
            outputs, _ = model.stateless_call(trained, others, batch, **mode)
            loss = tf.add_n([_loss(output) for output in tf.nest.flatten(outputs)])
        gradients = tape.gradient(loss, trained)
        found.extend(_tensor(gradient) for gradient in gradients if gradient is not None)
        return loss

    with _random_numbers_kept():
        graph = out_of_scopes(lambda: passes.get_concrete_function(*specs, inputs)).graph
    weights = {tuple(variable.shape) for variable in model.variables}
    size = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in found)
    walk = Walk(graph, [tensor.op for tensor in found], weights)
    return TracedStep(size, walk, [origin(tensor).op for tensor in found])


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Afterwards Python and NumPy draw as if nothing had been drawn meanwhile.

    Layers may draw while they are traced: Keras does, where a layer draws without a seed. Ranks
    that have not traced would draw other numbers then.
    """
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def slot_bytes(model: keras.Model) -> int:
    """What the optimizer of `model` keeps for each variable, whole, in bytes.

    Raises:
        ValueError: when Keras cannot make a copy of the optimizer.
    """
    optimizer = innermost(model.optimizer)
    make = maker_of_copies(optimizer)

    def count() -> int:
        with tf.Graph().as_default():  # in which a variable takes no memory
            copy = make()
            trained = model.trainable_variables
            with _explained(optimizer):
                copy.build([keras.Variable(tf.zeros(v.shape, v.dtype)) for v in trained])
            return sum(nbytes(variable) for variable in copy.variables if len(variable.shape))

    return out_of_scopes(count)


def nbytes(variable: keras.Variable) -> int:
    """The bytes of a variable, whole."""
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def maker_of_copies(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[[], keras.optimizers.Optimizer]:
    """A function that makes optimizers like this one, but with a constant learning rate.

    Raises:
        ValueError: when Keras cannot make them.
    """
    with _explained(optimizer):
        config = optimizer.get_config()  # which reads the learning rate, so not in a graph
    if isinstance(config.get("learning_rate"), dict):  # a schedule, perhaps of the user's own
        config["learning_rate"] = _RATE

    def make() -> keras.optimizers.Optimizer:
        with _explained(optimizer):
            return type(optimizer).from_config(config)

    return make


@contextlib.contextmanager
def _explained(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(
            "tfdist needs a copy of the optimizer, which Keras cannot make: give the optimizer, "
            "and what it consists of, `get_config` and `from_config`. "
            f"Received: {type(optimizer).__name__}, which raises {type(error).__name__}: {text}"
        ) from error


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer of the user, without a loss scale and tfdist around it."""
    if isinstance(optimizer, DistributedOptimizer):
        return innermost(optimizer.unwrap())
    inner = getattr(optimizer, "inner_optimizer", None)  # with a loss scale around it
    return optimizer if inner is None else innermost(inner)


def takes_training(model: keras.Model) -> bool:
    """Whether the model's `call` has the argument `training`."""
    return "training" in inspect.signature(model.call).parameters


def _loss(output: tf.Tensor) -> tf.Tensor:
    values = tf.cast(output, tf.float32)
    return -tf.reduce_mean(tf.nn.log_softmax(values) if values.shape.rank else values)


def _tensor(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
