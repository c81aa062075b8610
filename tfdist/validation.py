"""Checks of what users hand in, each with one error that says what to do."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist._versions import release
from tfdist.arguments import check_instance, shown
from tfdist.limits import FLOAT32_MAX, FLOAT32_SMALLEST, INT32_MAX, MOST_SECONDS


def check_inner_optimizer(optimizer: object, wrapper: type) -> keras.optimizers.Optimizer:
    """The Keras optimizer given by `optimizer`, checked: `wrapper` may wrap it.

    Args:
        optimizer: an optimizer, its name or its config.
        wrapper: the class of the wrapper.

    Raises:
        TypeError: for anything but a Keras 3 optimizer.
        ValueError: for an optimizer that tfdist or Horovod has wrapped already, or that accumulates
            gradients itself; for an unknown name or config.
    """
    if isinstance(optimizer, (str, dict)):
        try:
            optimizer = keras.optimizers.get(optimizer)
        except Exception as error:  # Keras raises errors of any kind here
            raise ValueError(
                "Expected a `keras.optimizers.Optimizer`, its name or its config. "
                f"Received: {shown(optimizer)}"
            ) from error
    check_not_legacy(optimizer)
    check_not_horovods(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "Expected a `keras.optimizers.Optimizer` or the name of one. "
            f"Received: {shown(optimizer)} of type {type(optimizer)}"
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    candidates: list[Any] = [optimizer] if inner is None else [optimizer, inner]
    for candidate in candidates:
        if isinstance(candidate, wrapper):
            raise ValueError(
                f"The optimizer is wrapped in {wrapper.__name__} already; wrap it once. "
                f"Received: {optimizer.name}"
            )
        steps = getattr(candidate, "gradient_accumulation_steps", None)
        if steps:
            raise ValueError(
                "Gradient accumulation belongs to the strategy here, where it saves traffic: "
                f"remove `gradient_accumulation_steps={steps}` from the optimizer and pass "
                f"`accumulation_steps={steps}` to the strategy. "
                f"Received: {candidate.name} with gradient_accumulation_steps={steps}"
            )
    return optimizer


def check_not_horovods(optimizer: Any) -> None:
    """Raises ValueError for an optimizer that Horovod's own `DistributedOptimizer` has wrapped.

    Horovod makes a class with the same name as the optimizer's class, and derived from it. Such an
    optimizer may be inside Keras' loss scaling.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    kind = type(optimizer)
    if any(base.__module__.split(".")[0] == "horovod" for base in kind.__mro__):
        raise ValueError(
            "The tfdist strategy exchanges the gradients itself, so `hvd.DistributedOptimizer` has "
            "no place here: remove it, and pass the optimizer that is inside it, such as "
            f"`keras.optimizers.{kind.__name__}(...)`. "
            f"Received: hvd.DistributedOptimizer of {kind.__name__} named {optimizer.name!r}"
        )


def check_not_legacy(thing: object) -> None:
    """Raises TypeError for an object, class or function of the legacy `tf_keras` package."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    if module.split(".")[0] == "tf_keras":
        name = getattr(thing, "__qualname__", type(thing).__name__)
        raise TypeError(
            "tfdist trains Keras 3 models with Keras 3 optimizers, not those of the legacy "
            "`tf_keras`. Import `keras` instead, and unset TF_USE_LEGACY_KERAS if it is set. "
            f"Received: {module}.{name}"
        )


def check_tape(tape: tf.GradientTape) -> None:
    """Raises ValueError for Horovod's own tape, which would average the gradients once more."""
    if type(tape).__module__.split(".")[0] == "horovod":
        raise ValueError(
            "Under a tfdist strategy the optimizer exchanges the gradients: remove "
            "`hvd.DistributedGradientTape` and use the `tf.GradientTape` itself. "
            "Received: a gradient of hvd.DistributedGradientTape"
        )


def check_model_scope(
    model: keras.Model,
    layers: list[keras.layers.Layer],
    strategy: tf.distribute.Strategy,
    stored: Callable[[keras.Variable], tf.Variable],
) -> None:
    """Raises ValueError unless the variables of `model` were made in the scope of `strategy`.

    `layers` are all of its layers; `stored` returns the `tf.Variable` in a Keras variable.
    """
    for variable in model.variables:
        if strategy.extended.variable_created_in_scope(stored(variable)):
            continue
        adapted = [
            layer.name
            for layer in layers
            if hasattr(layer, "adapt") and any(own is variable for own in layer.variables)
        ]
        remedy = (
            f"Make the layer {adapted[0]!r} and call its `adapt` inside `with strategy.scope():`, "
            "as the model."
            if adapted
            else "Build and compile the model inside `with strategy.scope():`."
        )
        raise ValueError(
            f"The model was not built in the scope of this {type(strategy).__name__}: its "
            f"variable {variable.path} is not on the strategy's devices. {remedy} "
            f"Received: model={model.name}"
        )


def check_metrics(
    metrics: list[keras.metrics.Metric],
    strategy: tf.distribute.Strategy,
    stored: Callable[[keras.Variable], tf.Variable],
) -> None:
    """Raises ValueError unless all metrics were made in the scope; `stored` is as above."""
    for variable in [variable for metric in metrics for variable in metric.variables]:
        if not strategy.extended.variable_created_in_scope(stored(variable)):
            raise ValueError(
                f"A metric was not made in the scope of this {type(strategy).__name__}, so each "
                "process would count for itself. Make the metric inside `with strategy.scope():`. "
                f"Received: the variable {variable.path} of a metric"
            )


def check_trainable(variables: list[keras.Variable]) -> None:
    """Raises ValueError for variables that are overwritten by their gradients (float8 scales)."""
    overwritten = [v.path for v in variables if getattr(v, "overwrite_with_gradient", False)]
    if overwritten:
        raise ValueError(
            "float8 training is not supported: its scales are not gradients that can be summed "
            "over replicas. Use the dtype policy float32, mixed_float16 or mixed_bfloat16. "
            f"Received: variables with overwrite_with_gradient: {overwritten}"
        )


def check_layers(layers: list[keras.layers.Layer], replicas: int) -> None:
    """Raises ValueError for layers that need the whole batch, if there are several replicas.

    Such layers have a state per sample or, before Keras 3.14, an activity regularizer.
    """
    stateful = [layer.name for layer in layers if getattr(layer, "stateful", False)]
    if stateful and replicas > 1:
        raise ValueError(
            "A stateful recurrent layer keeps a state for each place in the batch, but a replica "
            "sees only a part of the batch. Use `stateful=False` or one replica. "
            f"Received: layers {stateful} with {replicas} replicas"
        )
    regularized = [layer.name for layer in layers if layer.activity_regularizer is not None]
    if regularized and replicas > 1 and release(keras.__version__) < (3, 14):
        raise ValueError(
            "Before Keras 3.14 activity regularizers sum over the batch, of which a replica sees "
            "only a part. Upgrade Keras to 3.14 or later, where they take the mean, or use one "
            f"replica. Received: layers {regularized} with Keras {keras.__version__}"
        )


def check_no_synchronized_layers(layers: list[keras.layers.Layer], who: str) -> None:
    """Raises ValueError for layers that exchange values, as `who` cannot exchange any."""
    names = [layer.name for layer in layers if getattr(layer, "synchronized", False)]
    if names:
        raise ValueError(
            f"{who} cannot exchange values within a step, as synchronized BatchNormalization "
            "does. Leave `synchronized` out, or use another strategy. "
            f"Received: layers {names}"
        )


def check_not_empty(dataset: object) -> None:
    """Raises ValueError for a data set that is known to have no batches."""
    if isinstance(dataset, tf.data.Dataset) and int(dataset.cardinality()) == 0:
        raise ValueError(
            "The data set has no batches. Give it at least one; with `drop_remainder=True` it "
            f"needs a whole batch of samples. Received: {dataset} of cardinality 0"
        )


def check_exchangeable(dtype: object, name: str | None) -> None:
    """Raises ValueError for a variable whose values and gradients processes cannot exchange.

    Args:
        dtype: the variable's dtype; None where it is not known yet.
        name: the variable's name.
    """
    if dtype is not None and tf.as_dtype(dtype) == tf.bfloat16:
        raise ValueError(
            "Processes cannot exchange variables and gradients in bfloat16. Use the dtype policy "
            "`mixed_bfloat16`, which keeps the variables and their gradients in float32. "
            f"Received: a bfloat16 variable {name!r}"
        )


def check_integer(name: str, value: Any, minimum: int, maximum: int = INT32_MAX) -> None:
    """Raises ValueError unless the argument `name` is an integer from `minimum` to `maximum`."""
    valid = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not valid or not minimum <= value <= maximum:
        too_large = valid and value > maximum
        allowed = f"from {minimum} to {maximum}" if too_large else f">= {minimum}"
        raise ValueError(f"`{name}` must be an integer {allowed}. Received: {name}={shown(value)}")


def check_number(
    name: str,
    value: Any,
    minimum: float,
    exclusive: bool = False,
    maximum: float = FLOAT32_MAX,
) -> None:
    """Raises ValueError unless the argument `name` is a number within bounds that float32 can hold.

    Args:
        name: what the argument is called.
        value: what was received.
        minimum: the smallest allowed number.
        exclusive: whether `minimum` itself is not allowed; only with a `minimum` of 0.
        maximum: the largest allowed number.
    """
    valid = isinstance(value, numbers.Real) and not isinstance(value, bool)
    above = valid and (value > minimum if exclusive else value >= minimum)  # NaN is neither
    smallest = FLOAT32_SMALLEST if exclusive else minimum
    if not above or value == float("inf"):
        allowed = f"{'>' if exclusive else '>='} {minimum}"
    elif not smallest <= value <= maximum:
        allowed = f"from {smallest:g} to {maximum:g}"
    else:
        return
    raise ValueError(f"`{name}` must be a number {allowed}. Received: {name}={shown(value)}")


def check_seconds(name: str, value: object, minimum: float = 0.0) -> None:
    """Raises ValueError unless the argument `name` is a number of seconds that one can wait.

    Args:
        name: what the argument is called.
        value: what was received.
        minimum: the smallest allowed number of seconds; with 0, more than 0 is needed.
    """
    check_number(name, value, minimum, exclusive=not minimum, maximum=MOST_SECONDS)


def check_choice(name: str, value: object, allowed: Sequence[Any]) -> None:
    """Raises ValueError unless the argument `name` is one of the `allowed` values.

    Args:
        name: what the argument is called.
        value: what was received.
        allowed: the values to choose from.
    """
    if not any(isinstance(value, type(one)) and value == one for one in allowed):
        raise ValueError(
            f"`{name}` must be one of {list(allowed)}. Received: {name}={shown(value)}"
        )


def check_resolver(resolver: object) -> None:
    """Raises TypeError unless the argument `cluster_resolver` is a cluster resolver or None."""
    if resolver is not None:
        check_instance(
            "cluster_resolver",
            resolver,
            tf.distribute.cluster_resolver.ClusterResolver,
            "tf.distribute.cluster_resolver.ClusterResolver",
        )
