"""What must be equal in all processes when `fit`, `evaluate` or `predict` begin."""

from __future__ import annotations

import platform
import weakref
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist import compat
from tfdist.optimizer import DistributedOptimizer
from tfdist.options import Options
from tfdist.processes.describe import plain, with_names_by_order
from tfdist.step.model_optimizers import optimizers_of

# Arguments that may differ: they decide what is shown, and what runs beside training.
_HARMLESS = ("verbose", "callbacks", "return_dict", "kwargs")
_DATA = ("x", "y", "sample_weight", "validation_data")
# Initial values, seeds included, come from rank 0. Layers may have been built for the shape of a
# rank's part of a batch.
_OWN_OF_RANKS = ("seed", "build_config", "initializer")
_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics", "auto_scale_loss")

_compiled: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_compared: weakref.WeakSet = weakref.WeakSet()


def note_compiled(model: keras.Model, arguments: Mapping[str, Any]) -> None:
    """Notes what `compile` was given, as a model keeps only a part of it."""
    _compiled[model] = {name: plain(arguments.get(name)) for name in _COMPILED}


def note_compared(model: keras.Model) -> None:
    """Notes that the model is equal in all processes."""
    _compared.add(model)


def of_versions() -> dict[str, str]:
    """The versions of tfdist, Keras, TensorFlow and Python."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "tfdist": tfdist.__version__,
        "Keras": keras.__version__,
        "TensorFlow": tf.__version__,
        "Python": python,
    }


def of_strategy(name: str, options: Options, local_replicas: int) -> dict[str, Any]:
    """A strategy's class and options."""
    return {
        "versions": of_versions(),
        "strategy": name,
        "replicas of each rank": local_replicas,
        **{name: plain(value) for name, value in vars(options).items()},
    }


def of_run(model: keras.Model, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The model, how it was compiled, and the arguments of its method.

    To save time, `evaluate` and `predict` leave out a model that was compared before.

    Args:
        model: the model.
        name: the method: "fit", "evaluate" or "predict".
        arguments: the method's arguments, by name.
    """
    plain_arguments = {
        name: plain(value) for name, value in arguments.items() if name not in (*_HARMLESS, *_DATA)
    }
    data = {name: _data(arguments[name]) for name in _DATA if name in arguments}
    is_new = name == "fit" or model not in _compared
    return {
        "model": of_model(model) if is_new else None,
        "compile": of_compile(model) if is_new else None,
        "arguments": {**plain_arguments, "tfdist's callbacks": _callbacks(arguments)},
        "data": data,
        "keras.config": [
            keras.config.floatx(),
            keras.config.image_data_format(),
            repr(keras.config.epsilon()),
        ],
    }


def of_model(model: keras.Model) -> dict[str, Any]:
    """The class of `model`, its configuration, and its layers.

    The configuration says how layers are connected. A user's own model may have none; its layers
    are then described one by one.
    """
    config = _config(model)
    layers = [] if config is not None else compat.flatten_layers(model)[1:]
    found = with_names_by_order(
        {
            "class": type(model).__qualname__,
            "config": config,
            "layers": [_layer(layer) for layer in layers],
            "trainable": [bool(layer.trainable) for layer in compat.flatten_layers(model)],
            "variables": [[list(v.shape), v.dtype] for v in model.variables],
        },
        with_bases=_depends_on_names(model),
    )
    return _common(found)


def _depends_on_names(model: keras.Model) -> bool:
    """Whether it matters for training what layers are called: for compressors by variable."""
    chosen = [
        optimizer.options.compression
        for optimizer in optimizers_of(model).values()
        if isinstance(optimizer, DistributedOptimizer)
    ]
    return any(choice is not None and choice.depends_on_names for choice in chosen)


def _common(tree: object) -> Any:
    """Plain data of a configuration without what may differ between ranks."""
    if isinstance(tree, list):
        return [_common(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: _common(item) for key, item in tree.items() if not key.endswith(_OWN_OF_RANKS)}


def _layer(layer: keras.layers.Layer) -> dict[str, Any]:
    return {
        "class": type(layer).__qualname__,
        "dtype": layer.dtype_policy.name,
        "config": _config(layer),
    }


def _config(layer: keras.layers.Layer) -> Any:
    try:
        return plain(layer.get_config())
    except Exception:  # Keras raises errors of several kinds where there is none
        return None


def of_compile(model: keras.Model) -> dict[str, Any]:
    """The optimizers, loss and metrics of `model`, and how its steps run."""
    parts = {
        name: plain(part)
        for name, part in vars(model).items()
        if isinstance(part, (keras.optimizers.Optimizer, keras.losses.Loss))
    }
    running = ("run_eagerly", "steps_per_execution", "jit_compile")
    return with_names_by_order(
        {
            **_compiled.get(model, {}),
            **{name: plain(getattr(model, name, None)) for name in running},
            **parts,
        }
    )


def _callbacks(arguments: Mapping[str, Any]) -> list[Any]:
    """The names of tfdist's own callbacks; all ranks need the same, as some communicate."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        given = given.callbacks
    found = [given] if isinstance(given, keras.callbacks.Callback) else list(given or ())
    return [
        type(callback).__name__
        for callback in found
        if type(callback).__module__.startswith("tfdist.callbacks.")
        and type(callback).__name__ != "TrainingChecks"
    ]


def _data(value: object) -> Any:
    """The kind of data, and the shapes of arrays; data sets are compared when distributed."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_data(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _data(item) for key, item in value.items()}
    if isinstance(value, (tf.distribute.DistributedDataset, tf.data.Dataset)):
        return "data set"
    if isinstance(value, keras.utils.PyDataset):
        return "PyDataset"
    if hasattr(value, "__next__"):
        return "generator"
    shape = getattr(value, "shape", None)
    return type(value).__qualname__ if shape is None else f"array of shape {tuple(shape)}"
