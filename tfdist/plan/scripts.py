"""Runs a script up to its first `fit`, for the model, the optimizer and the first batch."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdist.arguments import shown
from tfdist.structures import Structure

_DEFAULT_BATCH = 32  # Keras' own


class _Reached(BaseException):
    """The script has called `fit`: ends the script, past its `except Exception`."""

    def __init__(self, model: keras.Model, inputs: Structure):
        self.model, self.inputs = model, inputs


def first_fit(script: str, arguments: Sequence[str] = ()) -> tuple[keras.Model, Structure]:
    """The model of the script's first `fit`, and the first batch of inputs.

    Nothing is trained: `fit` ends the script.

    Args:
        script: the path of a Python file.
        arguments: the script's own.

    Raises:
        ValueError: when the script ends without a `fit`, or its data are of a kind that `fit` does
            not take.
    """
    with _intercepted(), _as_main(script, arguments):
        try:
            runpy.run_path(script, run_name="__main__")
        except _Reached as reached:
            return reached.model, reached.inputs
        except SystemExit as end:
            raise ValueError(
                f"The script ended with the status {end.code} before it called `fit`. "
                f"Received: {script!r}"
            ) from None
    raise ValueError(
        "The script ended and had not called `fit` of a Keras model. Give a script that trains, "
        f"with its arguments after `--`, or a model.keras. Received: {script!r}"
    )


@contextlib.contextmanager
def _intercepted() -> Iterator[None]:
    before = keras.Model.fit

    def fit(
        self: keras.Model,
        x: Structure = None,
        y: Structure = None,
        batch_size: int | None = None,
        *_: object,
        **__: object,
    ) -> NoReturn:
        inputs = _first_batch(x, batch_size)
        if not self.built:
            self(inputs)
        raise _Reached(self, inputs)

    keras.Model.fit = fit
    try:
        yield
    finally:
        keras.Model.fit = before


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _first_batch(x: Structure, batch_size: int | None) -> Structure:
    """The inputs of the first batch: tensors."""
    if isinstance(x, keras.utils.PyDataset):
        return _inputs(x[0])
    is_arrays = all(hasattr(part, "shape") and len(part) for part in tf.nest.flatten(x))
    if is_arrays and not isinstance(x, tf.data.Dataset):
        count = batch_size or _DEFAULT_BATCH
        return tf.nest.map_structure(lambda part: tf.convert_to_tensor(part[:count]), x)
    if isinstance(x, Iterable):
        return _inputs(next(iter(x)))
    raise ValueError(
        "tfdist plan knows arrays, tensors, `tf.data.Dataset`, `PyDataset` and generators as the "
        f"first argument of `fit`. Received: x={shown(x)}"
    )


def _inputs(batch: Structure) -> Structure:
    """The inputs in a batch of a data set, which may have targets and weights too."""
    x = batch[0] if isinstance(batch, (tuple, list)) else batch
    return tf.nest.map_structure(lambda part: tf.convert_to_tensor(np.asarray(part)), x)
