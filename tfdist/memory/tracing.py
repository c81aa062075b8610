"""Traces a training step of one replica: its gradients, and the graph that makes them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.memory.liveness import Walk
from tfdist.structures import Structure


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """The bytes of a step of one replica.

    Attributes:
        gradients: of all gradients; of a sparse one, of its rows.
        walk: of the forward and backward pass; None if it was not traced.
    """

    gradients: int
    walk: Walk | None = None

    def activations(self, factor: float = 1.0) -> int:
        """The most bytes beside the gradients, if each gradient's bytes count `factor` times."""
        if self.walk is None:
            return 0
        return max(0, self.walk.peak_bytes(factor) - round(factor * self.gradients))


def trace(model: keras.Model, inputs: Structure) -> TracedStep:
    """The forward and backward pass of `model` for a batch; nothing is computed.

    The loss is the mean of the logarithms of each output's softmax. It needs about as many bytes as
    a cross entropy does. Other losses need fewer.

    Args:
        model: a built model.
        inputs: what the model is called with: `tf.TensorSpec`s without unknown sizes.
    """
    trainable, others = _specs(model.trainable_variables), _specs(model.non_trainable_variables)
    mode = {"training": True} if takes_training(model) else {}
    found: list[tf.Tensor] = []

    @tf.function(autograph=False)
    def passes(trained: list[tf.Tensor], others: list[tf.Tensor], given: Structure) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(trained)
            outputs, _ = model.stateless_call(trained, others, given, **mode)
            loss = tf.add_n([_loss(output) for output in tf.nest.flatten(outputs)])
        gradients = tape.gradient(loss, trained)
        found.extend(_tensor(gradient) for gradient in gradients if gradient is not None)
        return loss

    traced = passes.get_concrete_function(trainable, others, inputs)
    sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in found]
    weights = {tuple(spec.shape) for spec in (*trainable, *others)}
    return TracedStep(sum(sizes), Walk(traced.graph, found, weights))


def takes_training(model: keras.Model) -> bool:
    """Whether the model's `call` has the argument `training`."""
    return "training" in inspect.signature(model.call).parameters


def _loss(output: tf.Tensor) -> tf.Tensor:
    values = tf.cast(output, tf.float32)
    return -tf.reduce_mean(tf.nn.log_softmax(values) if values.shape.rank else values)


def _tensor(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _specs(variables: Sequence[keras.Variable]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
