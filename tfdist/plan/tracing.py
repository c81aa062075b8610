"""Traces a model once: the sizes of its gradients, and when in the backward pass they are there.

The time of an operation is taken to be proportional to its multiplications and additions, and of
one that moves or maps elements, to their number. TensorFlow runs a backward pass about in the order
in which it was traced. So a gradient is there after the operations that were traced before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.memory.inputs import inputs_of
from tfdist.memory.sizes import nbytes
from tfdist.memory.tracing import slots_of, takes_training
from tfdist.memory.tracing import trace as trace_passes
from tfdist.plan.workload import TracedVariable, Workload
from tfdist.step.fixed_rows import may_be_fixed
from tfdist.step.row_tables import tables_of
from tfdist.step.sharding.elementwise import needs_whole_variables
from tfdist.step.sharding.weights import may_be_divided
from tfdist.step.tables import Tables
from tfdist.structures import Structure

# An element that is read, mapped and written takes as long as so many multiplications.
_OF_AN_ELEMENT = 16
# Products of matrices, and what says that the first one is transposed.
_TRANSPOSED = {"MatMul": "transpose_a", "BatchMatMulV2": "adj_x", "BatchMatMulV3": "adj_x"}


def specs_of(model: keras.Model, batch: int) -> Structure:
    """Shapes and dtypes of what the model is called with.

    Args:
        model: a model whose inputs are known.
        batch: the number of samples.

    Raises:
        ValueError: for a model without known inputs, and for dimensions that are not known.
    """
    instead = "Give a script instead, whose first batch in `fit` has their shapes."
    return inputs_of(model, batch, instead=instead)


def random_inputs(specs: Structure) -> Structure:
    """Tensors of these shapes: random numbers; zeros where numbers choose, such as rows."""
    return tf.nest.map_structure(
        lambda spec: (
            tf.random.normal(spec.shape, dtype=spec.dtype)
            if spec.dtype.is_floating
            else tf.zeros(spec.shape, spec.dtype)
        ),
        specs,
    )


def loss_and_gradients(model: keras.Model, inputs: Structure) -> tuple[tf.Tensor, list[Any]]:
    """The gradients of the mean of all outputs, which cost what those of a loss do."""
    values = [variable.value for variable in model.trainable_variables]
    mode = {"training": True} if takes_training(model) else {}
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(model(inputs, **mode))
        loss = tf.add_n([tf.reduce_mean(tf.cast(output, tf.float32)) for output in outputs])
    return loss, tape.gradient(loss, values)


def trace(
    model: keras.Model,
    inputs: Structure,
    batch: int,
    optimizer: keras.optimizers.Optimizer | None,
) -> Workload:
    """What a training step of the model computes and exchanges.

    Args:
        model: a built model.
        inputs: what the model is called with: tensors, or `tf.TensorSpec`s.
        batch: the number of samples in them.
        optimizer: the model's optimizer; None to plan for SGD with momentum.

    Raises:
        ValueError: for a model that trains nothing.
    """
    specs = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), inputs)
    moments: dict[str, int] = {}

    @tf.function(autograph=False)
    def traced(given: Structure) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        loss, gradients = loss_and_gradients(model, given)
        moments["forward"] = _place(graph, loss)
        found.extend(
            None if g is None else (g, _place(graph, _tensor(g)), may_be_fixed(g))
            for g in gradients
        )
        return loss

    found: list[Any] = []
    graph = traced.get_concrete_function(specs).graph
    before = _cumulative(graph.get_operations())
    forward, whole = before[moments["forward"] + 1], before[-1]
    variables = []
    for variable, gradient in zip(model.trainable_variables, found):
        if gradient is None:
            continue
        value, place, is_fixed = gradient
        ready = (before[place + 1] - forward) / max(1, whole - forward)
        shape = tuple(variable.shape)
        rows = _rows(value) if isinstance(value, tf.IndexedSlices) else None
        size = tf.as_dtype(variable.dtype).size
        ready = min(1.0, max(0.0, ready))
        variables.append(
            TracedVariable(
                variable.path,
                shape,
                variable.dtype,
                size,
                ready,
                rows,
                may_be_divided(variable),
                variable.regularizer is not None,
                is_fixed,
            )
        )
    if not variables:
        raise ValueError(
            "The model has no variable that is trained, so nothing is exchanged. "
            f"Received: model={model.name!r}"
        )
    trained = sum(variable.nbytes for variable in variables)
    frozen = sum(map(nbytes, model.variables)) - trained
    passes = trace_passes(model, specs)
    return Workload(
        batch,
        tuple(variables),
        forward / max(1, whole),
        slot_bytes=trained if optimizer is None else _slot_bytes(optimizer, model),
        frozen_bytes=max(0, frozen),
        tables=Tables.NONE if optimizer is None else tables_of(optimizer),
        moments=passes.moments,
        updates_whole=optimizer is not None and needs_whole_variables(optimizer),
        is_eager=bool(getattr(model, "run_eagerly", False)),
        unknown=passes.unknown,
    )


def _tensor(gradient: Structure) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _place(graph: tf.Graph, tensor: tf.Tensor) -> int:
    """The number of the operation that makes `tensor`, in the order of the trace."""
    return graph.get_operations().index(tensor.op)


def _cumulative(operations: Sequence[tf.Operation]) -> list[float]:
    """The work of all operations before each, and of all."""
    sums = [0.0]
    for operation in operations:
        sums.append(sums[-1] + _work(operation))
    return sums


def _work(operation: tf.Operation) -> float:
    """The multiplications of an operation, or as many as take as long."""
    elements = float(sum(tensor.shape.num_elements() or 0 for tensor in operation.outputs))
    if operation.type in ("Placeholder", "Const", "ReadVariableOp", "Identity", "Reshape"):
        return 0.0
    if operation.type in _TRANSPOSED and operation.inputs[0].shape.rank:
        is_transposed = operation.get_attr(_TRANSPOSED[operation.type])
        inner = operation.inputs[0].shape[-2 if is_transposed else -1]
        return 2 * elements * (inner or 0)
    if operation.type == "Einsum":
        return 2.0 * math.prod(_sizes_of_indices(operation).values())
    if operation.type.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")):
        return _work_of_convolution(operation)
    return _OF_AN_ELEMENT * elements


def _sizes_of_indices(operation: tf.Operation) -> dict[str, int]:
    """The size of each index of an Einsum, by its letter; of "..." only what is known."""
    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
    return {
        letter: size or 1
        for term, tensor in zip(terms, operation.inputs)
        for letter, size in zip(term, tensor.shape)
    }


def _work_of_convolution(operation: tf.Operation) -> float:
    """Multiplications of a convolution, or of the gradient of its filter or input."""
    of_filter, of_input = "BackpropFilter" in operation.type, "BackpropInput" in operation.type
    kernel = operation.outputs[0].shape if of_filter else operation.inputs[1].shape
    result = operation.inputs[2].shape if of_filter or of_input else operation.outputs[0].shape
    axes = kernel[:-2] if operation.type.startswith("Depthwise") else kernel[:-1]
    return 2.0 * (result.num_elements() or 0) * (axes.num_elements() or 0)


def _rows(gradient: tf.IndexedSlices) -> int:
    return gradient.values.shape[0] or 0


def _slot_bytes(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> int:
    """What the optimizer keeps, in bytes, without Keras' own accumulated gradients.

    A strategy accumulates in its place; see `assumptions.accumulation_steps`.
    """
    trained = model.trainable_variables
    accumulated = sum(map(nbytes, trained)) if optimizer.gradient_accumulation_steps else 0
    return slots_of(optimizer, trained) - accumulated
