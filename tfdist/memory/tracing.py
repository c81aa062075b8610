"""Traces a training step of one replica: its passes, and the update of the variables."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdist.memory.liveness import Walk, origin
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.structures import Structure

# Any learning rate that changes nothing much: a copy of an optimizer may make some updates.
_RATE = 1e-6


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """The bytes of a step of one replica.

    Attributes:
        gradients: of all gradients; of a sparse one, of its rows.
        walk: of the step; None if it was not traced.
        makers: the operations that make gradients.
        update: the operations of the update.
    """

    gradients: int
    walk: Walk | None = None
    makers: Sequence[tf.Operation] = ()
    update: Sequence[tf.Operation] = ()

    def activations(self, sums: float = 0.0, part: float = 1.0) -> int:
        """The most bytes beside the gradients and their sums.

        Args:
            sums: the bytes of the sums over the replicas, as a part of those of the gradients.
            part: the part of the variables that a replica updates.
        """
        if self.walk is None:
            return 0
        scales = dict.fromkeys(self.update, part) | dict.fromkeys(self.makers, 1.0 + sums)
        return max(0, self.walk.peak_bytes(scales) - round((1.0 + sums) * self.gradients))


def trace(model: keras.Model, inputs: Structure) -> TracedStep:
    """A step of `model` with one batch; nothing is computed, and nothing of the model changes.

    The loss is the mean of the logarithms of each output's softmax. It needs about as many bytes as
    a cross entropy does. Other losses need fewer.

    Args:
        model: a built and compiled model.
        inputs: what the model is called with: `tf.TensorSpec`s without unknown sizes.
    """
    mode = {"training": True} if takes_training(model) else {}
    make = maker_of_optimizer(model)
    with tf.Graph().as_default() as graph:
        optimizer, variables = make()
        trained, others = _placeholders(variables), _placeholders(model.non_trainable_variables)
        with tf.GradientTape() as tape:
            tape.watch(trained)
            batch = tf.nest.map_structure(_placeholder, inputs)
            outputs, _ = model.stateless_call(trained, others, batch, **mode)
            loss = tf.add_n([_loss(output) for output in tf.nest.flatten(outputs)])
        gradients = tape.gradient(loss, trained)
        made = len(graph.get_operations())
        optimizer.apply(gradients, variables)
    found = [_tensor(gradient) for gradient in gradients if gradient is not None]
    size = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in found)
    update = graph.get_operations()[made:]
    wanted = [*(tensor.op for tensor in found), *(o for o in update if not o.outputs)]
    walk = Walk(graph, wanted, {tuple(variable.shape) for variable in model.variables})
    return TracedStep(size, walk, [origin(tensor).op for tensor in found], update)


def maker_of_optimizer(
    model: keras.Model,
) -> Callable[[], tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
    """A function that makes an optimizer like that of `model`, and variables like its weights.

    In a `tf.Graph` the function takes no memory.

    Raises:
        ValueError: when Keras cannot make it.
    """
    make_copy = maker_of_copies(_innermost(model.optimizer))

    def make() -> tuple[keras.optimizers.Optimizer, list[keras.Variable]]:
        copy = make_copy()
        variables = [
            keras.Variable(tf.zeros(v.shape, v.dtype), name=v.name)
            for v in model.trainable_variables
        ]
        copy.build(variables)
        return copy, variables

    return make


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

    make()
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


def _innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    if isinstance(optimizer, DistributedOptimizer):
        return _innermost(optimizer.unwrap())
    inner = getattr(optimizer, "inner_optimizer", None)  # with a loss scale around it
    return optimizer if inner is None else _innermost(inner)


def _placeholders(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    return [_placeholder(variable) for variable in variables]


def _placeholder(like: keras.Variable | tf.TensorSpec) -> tf.Tensor:
    return tf.compat.v1.placeholder(like.dtype, like.shape)


def takes_training(model: keras.Model) -> bool:
    """Whether the model's `call` has the argument `training`."""
    return "training" in inspect.signature(model.call).parameters


def _loss(output: tf.Tensor) -> tf.Tensor:
    values = tf.cast(output, tf.float32)
    return -tf.reduce_mean(tf.nn.log_softmax(values) if values.shape.rank else values)


def _tensor(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
