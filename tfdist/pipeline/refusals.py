"""What a pipeline cannot do with the result of one device."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import check_instance, shown

# Operations that compute along other axes with `axis=None`: this one along `axisa` and `axisb`.
_OTHER_AXES = ("Cross",)


def check_model(model: keras.Model) -> None:
    """Raises an error unless `model` is a plain Sequential or functional model, and built."""
    check_instance("model", model, keras.Model, "keras.Model")
    if type(model) not in (keras.Sequential, _functional_kind()):
        raise ValueError(
            "`model` must be a plain `keras.Sequential` or functional model: a stage has layers of "
            "its own, and a class of your own may compute something between them. "
            f"Received: a {type(model).__name__}"
        )
    if not model.built:
        raise ValueError(
            "`model` must be built, as its weights are divided. Give it a `keras.Input`. "
            f"Received: model={model.name}, which is not built"
        )
    sequential = isinstance(model, keras.Sequential)
    ends = (model.inputs, model.outputs) if sequential else (model.input, model.output)
    for what, structure in zip(("input", "output"), ends):
        found = structure
        if isinstance(structure, (list, tuple)) and len(structure) == 1:
            (found,) = structure
        if not isinstance(found, keras.KerasTensor) or found.sparse or found.ragged:
            raise ValueError(
                f"A pipeline takes one {what}, a dense tensor. "
                f"Received: model={model.name} with the {what} {shown(structure)}"
            )


def _functional_kind() -> type[keras.Model]:
    """The class of functional models, which has no public name."""
    inputs = keras.Input((1,), name="inputs")
    outputs = keras.layers.Identity(name="outputs")(inputs)
    return type(keras.Model(inputs, outputs, name="model"))


def check_layers(model: keras.Model) -> None:
    """Raises ValueError for layers whose result differs if a batch is cut into micro-batches."""
    for layer in compat.flatten_layers(model):
        reason = _reason(layer)
        if reason is not None:
            raise ValueError(
                f"A pipeline cuts each batch into micro-batches, and the layer {layer.name!r} "
                f"{reason} Received: {type(layer).__name__} named {layer.name!r}"
            )


def _reason(layer: keras.layers.Layer) -> str | None:
    if any(map(_mixes_samples, [layer, *getattr(layer, "operations", ())])):
        return (
            "computes along axis 0, that of the samples, as operations without an `axis` do too. "
            "Take another axis."
        )
    if (getattr(layer, "noise_shape", None) or [None])[0] is not None:
        return "draws one mask for several samples. Let `noise_shape` begin with None."
    if not isinstance(layer, keras.Model) and layer.metrics_variables:
        return "has a metric of its own, which would see each of them. Use metrics of `compile`."
    if getattr(layer, "stateful", False):
        return "keeps a state for each place in the batch. Use `stateful=False`."
    if layer.activity_regularizer is not None:
        return (
            "has an activity regularizer, which would be added once for each of them. Leave it out."
        )
    if isinstance(layer, keras.layers.Normalization):
        return None
    if hasattr(layer, "adapt"):
        return (
            "may have learned from data (`adapt`), which a copy of the model would not have. Apply "
            "it to the data set (`dataset.map`)."
        )
    if layer.trainable and compat.own_non_trainable_variables(layer):
        return (
            "has weights that are not trained, such as the statistics of BatchNormalization: they "
            "would be those of micro-batches. Take another layer, such as LayerNormalization or "
            "GroupNormalization, or freeze this one (`layer.trainable = False`) if it changes "
            "nothing in training."
        )
    return None


def _mixes_samples(layer: keras.layers.Layer) -> bool:
    """Whether a layer or an operation of a nested model has an axis that is that of samples."""
    axis = getattr(layer, "axis", None)
    if axis is None:
        # For operations such as `keras.ops.mean(x)` these are all axes. Layers, but for `Softmax`,
        # mean other things by None.
        may_be_all = (
            not isinstance(layer, keras.layers.Layer) or type(layer) is keras.layers.Softmax
        )
        return may_be_all and hasattr(layer, "axis") and type(layer).__name__ not in _OTHER_AXES
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    try:
        rank = len(keras.tree.flatten(layer.input)[0].shape)
    except (AttributeError, ValueError):  # called nowhere, or several times
        rank = None
    return any(number == 0 or (rank and number == -rank) for number in axes)


def check_copy(model: keras.Model, copy: keras.Model) -> None:
    """Raises ValueError unless `copy` has variables as `model`."""
    shapes, found = ([tuple(v.shape) for v in of.weights] for of in (model, copy))
    if shapes != found:
        raise ValueError(
            "A copy of the model has other weights. A layer that is in two layers or models is "
            "copied twice: use it in one of them, or put both into one model. "
            f"Received: model={model.name} with {len(shapes)} weights, its copy with {len(found)}"
        )


def no_copy(layer: keras.layers.Layer, error: Exception) -> ValueError:
    """The error for a layer that is not made anew from its configuration."""
    return ValueError(
        "`stages` makes each layer anew from its configuration (`get_config`, `from_config`). "
        "Register your own classes and functions, also those in nested models, with "
        "`@keras.saving.register_keras_serializable()`; name a function by `def` instead of a "
        "lambda; take functions of Keras, such as `activation='silu'`, for those of TensorFlow. "
        f"Received: {type(layer).__name__} named {layer.name!r}, which raises "
        f"{type(error).__name__}: {str(error)[:200]}"
    )


def check_step(model: keras.Model, mask: object) -> None:
    """Raises ValueError where the model is called; while the step is traced, before training."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "A pipeline has its own devices and trains with no strategy. Call `fit` outside of "
            f"`strategy.scope()`. Received: {type(tf.distribute.get_strategy()).__name__}"
        )
    if compat.is_in_xla():
        raise ValueError(
            "XLA compiles for one device, and a pipeline has several. Leave `jit_compile=True` "
            f"out. Received: a call of {model.name} in a function that XLA compiles"
        )
    if mask is not None:
        raise ValueError(
            "A pipeline takes no mask for its input; a layer such as `keras.layers.Masking` makes "
            f"one. Received: mask={shown(mask)}"
        )
    check_layers(model)


def check_losses(model: keras.Model) -> None:
    """Raises ValueError if layers have added losses, once for each micro-batch."""
    of_weights = sum(weight.regularizer is not None for weight in model.trainable_weights)
    if len(model.losses) > of_weights:
        raise ValueError(
            "A layer adds a loss (`add_loss`) when it is called, which in a pipeline is once for "
            "each micro-batch. Add it to the model's loss instead. "
            f"Received: {len(model.losses) - of_weights} such losses in model={model.name}"
        )
