"""What is said before `fit` begins: of memory that will not do, and of idle distributions."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping

import keras

from tfdist.memory import at_start
from tfdist.memory.batches import samples_of


@contextlib.contextmanager
def speak(model: keras.Model, name: str, arguments: Mapping[str, object]) -> Iterator[None]:
    """Surrounds `fit`, `evaluate` or `predict` of `model`; `name` says which."""
    if name == "fit":
        warn_of_distribution()
        if getattr(model.distribute_strategy, "replicas_hold_model", False):
            warn_of_memory(model, samples_of(arguments))
    yield


def warn_of_distribution() -> None:
    """Warns if Keras was told to distribute a model, which it does not do with TensorFlow."""
    distribution = keras.distribution.distribution()
    if distribution is not None:
        warnings.warn(
            "keras.distribution does nothing with TensorFlow as Keras' backend: the whole model "
            "trains on one device. Take a strategy of tfdist, such as "
            '`tfdist.Strategy("auto", sharding="optimizer")`, and leave out '
            f"`keras.distribution.set_distribution`. Received: {type(distribution).__name__}",
            stacklevel=2,
        )


def warn_of_memory(model: keras.Model, samples: int | None) -> None:
    """Warns if a step will not fit the memory of this host.

    Args:
        model: of a strategy whose replicas hold all of it. Nothing is said of one that is not
            built or not compiled.
        samples: of a global batch; None where it is not known.
    """
    if not (model.built and model.compiled and model.trainable_variables and model.optimizer):
        return
    try:
        place = at_start.place_of(model.distribute_strategy)
        found = place and at_start.what_does_not_fit(model, place, samples)
    except ValueError as error:  # of an optimizer of the user's; training may go well
        found = f"Whether the optimizer's state fits the memory is not known: {error}"
    if found:
        warnings.warn(found, stacklevel=2)
