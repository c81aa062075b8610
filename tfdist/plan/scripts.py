"""Runs a script up to its first `fit`, for the model, the optimizer and its data."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdist.arguments import shown
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.structures import Structure

_DEFAULT_BATCH = 32  # Keras' own


class Samples(NamedTuple):
    """The samples of an epoch.

    Attributes:
        number: how many there are.
        source: how that is known, for people.
    """

    number: int
    source: str


class First(NamedTuple):
    """What a script gives to its first `fit`.

    Attributes:
        model: what is trained.
        inputs: the first batch of inputs.
        samples: of an epoch; None if they are not known.
    """

    model: keras.Model
    inputs: Structure
    samples: Samples | None


class _Reached(BaseException):
    """The script has called `fit`, or else trains: ends the script, past its `except Exception`.

    Args:
        found: what was given to `fit`; or else why it is not known.
    """

    def __init__(self, found: First | Exception):
        self.found = found


def first_fit(script: str, arguments: Sequence[str] = ()) -> First:
    """What the script gives to its first `fit`.

    `fit` trains nothing but ends the script, and so do `train_on_batch` and the first update of a
    loop of one's own. What the script does before is done, and what it prints goes to stderr.

    Args:
        script: the path of a Python file.
        arguments: the script's own.

    Raises:
        ValueError: when the script fails, trains or ends without a `fit`, or there is no first
            batch of dense data.
    """
    with (
        _intercepted(script) as calls,
        _as_main(script, arguments),
        _all_to_stderr(),
    ):
        try:
            runpy.run_path(script, run_name="__main__")
        except (_Reached, SystemExit, Exception) as end:
            # A `finally` of the script may have ended it in another way than `fit` did.
            if not calls:
                raise _no_fit(end, script) from end
    if not calls:
        what = "The script ended, trained nothing with a Keras optimizer,"
        raise ValueError(_without_fit(what, script))
    found = calls[0].found
    if isinstance(found, Exception):
        raise ValueError(str(found)) from found
    return found


def _without_fit(happened: str, script: str) -> str:
    """The message for a script in which something has happened before `fit`."""
    return (
        f"{happened} and had not called `fit` of a Keras model. Give a script that trains with "
        f"`fit`, with its arguments after `--`, or a model.keras. Received: {script!r}"
    )


def _no_fit(end: BaseException, script: str) -> ValueError:
    if isinstance(end, SystemExit):
        return ValueError(
            f"The script ended with the status {end.code} before it called `fit`. "
            f"Received: {script!r}"
        )
    return ValueError(
        f"The script failed before it called `fit`: {_described(end, script)}. Run it by itself "
        f"first. Received: {script!r}"
    )


def _described(error: BaseException, script: str) -> str:
    """The error, with the last line of the script that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if os.path.abspath(f.filename) == os.path.abspath(script)]
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"{text} (line {lines[-1]})" if lines else text


@contextlib.contextmanager
def _intercepted(script: str) -> Iterator[list[_Reached]]:
    """Lets whatever trains end the script; gives the calls, the first one first."""
    calls: list[_Reached] = []
    before = keras.Model.fit

    def fit(self: keras.Model, *args: Structure, **kwargs: Structure) -> NoReturn:
        try:
            given = inspect.signature(before).bind(self, *args, **kwargs).arguments
            inputs = _first_batch(given.get("x"), given.get("batch_size"))
            if not self.built:
                self(inputs)
            samples = _samples(given, int(tf.nest.flatten(inputs)[0].shape[0]))
        except Exception as error:
            calls.append(_Reached(error))
        else:
            calls.append(_Reached(First(self, inputs, samples)))
        raise calls[-1]

    def otherwise(how: str) -> Callable[..., NoReturn]:
        def method(*args: Structure, **kwargs: Structure) -> NoReturn:
            text = _without_fit(f"The script trains with {how}", script)
            calls.append(_Reached(ValueError(text)))
            raise calls[-1]

        return method

    by_itself = otherwise("a loop of its own, or updates weights for another reason (`apply`)")

    def first_update(
        of: type[keras.optimizers.Optimizer] | type[DistributedOptimizer],
    ) -> Callable[..., None]:
        apply: Callable[..., None] = of.apply

        def method(
            self: object, grads: Sequence[Structure], *args: Structure, **kwargs: Structure
        ) -> None:
            # Some scripts make the optimizer's variables in this way, to load its state.
            if not _are_zeros(grads):
                by_itself()
            apply(self, grads, *args, **kwargs)

        return method

    with (
        _replaced(keras.Model, "fit", fit),
        _replaced(keras.Model, "train_on_batch", otherwise("`train_on_batch`")),
        _replaced(keras.optimizers.Optimizer, "apply", first_update(keras.optimizers.Optimizer)),
        _replaced(DistributedOptimizer, "apply", first_update(DistributedOptimizer)),
    ):
        yield calls


def _are_zeros(gradients: Sequence[Structure]) -> bool:
    """Whether gradients are known to be zero, and there is one at least."""
    given = [gradient for gradient in gradients if gradient is not None]
    if not given or any(isinstance(gradient, tf.IndexedSlices) for gradient in given):
        return False
    values = [tf.get_static_value(tf.convert_to_tensor(gradient)) for gradient in given]
    return all(value is not None and not np.any(value) for value in values)


@contextlib.contextmanager
def _replaced(owner: type, name: str, method: Callable[..., object]) -> Iterator[None]:
    """Replaces a method of a class, which may have inherited it."""
    before = vars(owner).get(name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def _all_to_stderr() -> Iterator[None]:
    """Sends to stderr what the script prints, and what the programs print that it starts."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


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
    """The inputs of the first batch: tensors, each with the samples along its first axis."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}")
    inputs = _first_inputs(x, batch_size)
    if not all(tensor.shape.rank and tensor.shape[0] for tensor in tf.nest.flatten(inputs)):
        raise ValueError(
            "The first argument of `fit` must give batches of samples; data sets are batched with "
            f"`.batch(n)`. Received: a first batch {shown(inputs)}"
        )
    return inputs


def _check_dense(x: Structure) -> None:
    if any(isinstance(part, (tf.RaggedTensor, tf.SparseTensor)) for part in tf.nest.flatten(x)):
        raise ValueError(
            "tfdist plan knows dense inputs only, as it computes with the shapes of one batch. "
            f"Received: x={shown(x)}"
        )


def _first_inputs(x: Structure, batch_size: int | None) -> Structure:
    _check_dense(x)
    if isinstance(x, keras.utils.PyDataset):
        return _inputs(x[0])
    if _are_arrays(x):
        count = batch_size or _DEFAULT_BATCH
        return tf.nest.map_structure(lambda part: tf.convert_to_tensor(part[:count]), x)
    if isinstance(x, Iterable):
        for batch in x:
            return _inputs(batch)
        raise ValueError(f"The data have no batch. Received: x={shown(x)}")
    raise ValueError(
        "tfdist plan knows arrays, tensors, `tf.data.Dataset`, `PyDataset` and generators as the "
        f"first argument of `fit`. Received: x={shown(x)}"
    )


def _are_arrays(x: Structure) -> bool:
    parts = tf.nest.flatten(x)
    is_data = isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))
    return not is_data and all(hasattr(part, "shape") and len(part) for part in parts)


def _samples(given: Mapping[str, Any], batch: int) -> Samples | None:
    """The samples of an epoch of `fit` with these arguments, whose first batch has so many."""
    x, steps = given.get("x"), given.get("steps_per_epoch")
    if steps is not None and steps > 0:
        return Samples(steps * batch, f"steps_per_epoch={steps}, batches of {batch}")
    if _are_arrays(x):
        held_out = given.get("validation_data") is None and given.get("validation_split") or 0.0
        count = math.floor(len(tf.nest.flatten(x)[0]) * (1.0 - held_out))  # as Keras rounds
        return Samples(count, "the arrays of its `fit`")
    batches = None
    if isinstance(x, keras.utils.PyDataset):
        batches = x.num_batches
    elif isinstance(x, tf.data.Dataset):
        batches = int(x.cardinality())  # less than 0 where it is not known, or infinite
    if batches is None or batches < 1:
        return None
    return Samples(batches * batch, f"{batches:,} batches of {batch} in its data set")


def _inputs(batch: Structure) -> Structure:
    """The inputs in a batch of a data set, which may have targets and weights too."""
    x = batch[0] if isinstance(batch, (tuple, list)) else batch
    _check_dense(x)
    return tf.nest.map_structure(lambda part: tf.convert_to_tensor(np.asarray(part)), x)
