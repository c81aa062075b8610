"""Models whose weights callbacks have read: rank 0 alone has them until all share them."""

from __future__ import annotations

import weakref

import keras

_models: list[weakref.ref] = []


def note(model: keras.Model) -> None:
    """Notes that a callback of this process has called `load_weights`."""
    if not is_noted(model):
        _models.append(weakref.ref(model))


def is_noted(model: keras.Model) -> bool:
    """Whether a callback has read the weights of `model`, and not all processes have them."""
    return any(one() is model for one in _models)


def forget(model: keras.Model) -> None:
    """Notes that all processes have the weights of `model`."""
    _models[:] = [one for one in _models if one() not in (None, model)]


def taken(but: keras.Model) -> list[keras.Model]:
    """The noted models, without `but`, in the order of their reading; then none are noted."""
    found = [one() for one in _models]
    _models.clear()
    return [model for model in found if model is not None and model is not but]
