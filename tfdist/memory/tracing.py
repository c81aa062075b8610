"""Traces the passes of one replica, and makes copies of optimizers."""

from __future__ import annotations

import contextlib
import inspect
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

from tfdist.memory.liveness import Walk, origin
from tfdist.memory.sizes import Passes, Sizes, frozen_of, nbytes, weight_of
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.step.sharding.elementwise import needs_whole_variables
from tfdist.step.sharding.parts import Parts
from tfdist.structures import Gradient, Structure

# Any learning rate that changes nothing much: a copy of an optimizer may make some updates.
_RATE = 1e-6

_T = TypeVar("_T")


def out_of_scopes(function: Callable[[], _T]) -> _T:
    """What `function` returns, in a thread of its own: no strategy's scope is entered there.

    In a scope of several processes, to make a variable is an operation of all of them.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def trace(model: keras.Model, inputs: Structure) -> Passes:
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
    found: list[Gradient | None] = []

    @tf.function(autograph=False)
    def passes(trained: list[tf.Tensor], others: list[tf.Tensor], batch: Structure) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(trained)
            outputs, _ = model.stateless_call(trained, others, batch, **mode)
            loss = _loss_of(outputs)
        found.extend(tape.gradient(loss, trained))
        return loss

    with _random_numbers_kept():
        graph = out_of_scopes(lambda: passes.get_concrete_function(*specs, inputs)).graph
    weights = tuple(
        weight_of(variable, _bytes_of(gradient), isinstance(gradient, tf.IndexedSlices))
        for variable, gradient in zip(model.trainable_variables, found)
    )
    tensors = [_tensor(gradient) for gradient in found if gradient is not None]
    shapes = {tuple(variable.shape) for variable in model.variables}
    walk = Walk(graph, [tensor.op for tensor in tensors], shapes)
    return Passes(weights, walk.moments({origin(tensor).op for tensor in tensors}), walk.unknown)


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


def sizes_of(model: keras.Model, passes: Passes, slots: int) -> Sizes:
    """All that the memory of a step follows from.

    Args:
        model: a built and compiled model.
        passes: of the model.
        slots: the bytes that the optimizer keeps, whole.
    """
    every = sum(nbytes(variable) for variable in model.variables)
    return Sizes(
        passes,
        every - sum(weight.nbytes for weight in passes.weights),
        slots,
        needs_whole_variables(innermost(model.optimizer)),
        bool(model.run_eagerly),
        frozen_of(model),
    )


def slot_bytes(model: keras.Model, parts: int = 1) -> int:
    """What the optimizer of `model` keeps for each variable, in bytes.

    Args:
        model: a compiled model.
        parts: of how many replicas each one keeps it for its part of each variable; 1 for whole
            variables.

    Raises:
        ValueError: when Keras cannot make a copy of the optimizer.
    """
    return slots_of(innermost(model.optimizer), model.trainable_variables, parts)


def slots_of(
    optimizer: keras.optimizers.Optimizer, trained: Sequence[keras.Variable], parts: int = 1
) -> int:
    """What an optimizer keeps for each of some variables, in bytes.

    The sizes are those of a copy, so that nothing of the user's own is changed.

    Args:
        optimizer: as the user gave it, below any loss scaling.
        trained: the variables that it updates.
        parts: as for `slot_bytes`.

    Raises:
        ValueError: when Keras cannot make a copy of the optimizer.
    """
    make = maker_of_copies(optimizer)

    def count() -> int:
        with tf.Graph().as_default():  # in which a variable takes no memory
            copy = make()
            with _explained(optimizer):
                copy.build([_InPlaceOf(variable, parts) for variable in trained])
            return sum(nbytes(variable) for variable in copy.variables if len(variable.shape))

    return out_of_scopes(count)


class _InPlaceOf(keras.Variable):
    """Zeros with the path of a weight, by which some optimizers choose what they keep for it.

    They have the shape of the weight, or of one of so many parts of it.
    """

    def __init__(self, weight: keras.Variable, parts: int):
        spec = tf.TensorSpec(weight.shape, weight.dtype)
        shape = spec.shape if parts == 1 else Parts.of(spec, parts).part_shape
        # The optimizer names its variables after it, and graphs take some characters only.
        self._given = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", weight.path)
        super().__init__(tf.zeros(shape, weight.dtype), name="weight")

    @property
    def path(self) -> str:
        """The path of the weight."""
        return self._given


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


def _loss_of(outputs: Structure) -> tf.Tensor:
    """The sum of the losses of all outputs that a loss can train."""
    tensors = [tf.convert_to_tensor(one) for one in tf.nest.flatten(outputs) if one is not None]
    losses = [_loss(one) for one in tensors if one.dtype.is_floating]
    if not losses:
        raise ValueError(
            "A model is trained by its outputs of floating-point numbers. Received: a model with "
            f"outputs of the dtypes {[one.dtype.name for one in tensors]}"
        )
    return tf.add_n(losses)


def _loss(output: tf.Tensor) -> tf.Tensor:
    values = tf.cast(output, tf.float32)
    return -tf.reduce_mean(tf.nn.log_softmax(values) if values.shape.rank else values)


def _bytes_of(gradient: Gradient | None) -> int:
    """The bytes of a gradient; 0 if there is none, or if the data decide how many rows it has."""
    if gradient is None:
        return 0
    tensor = _tensor(gradient)
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _tensor(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
