"""The rows of the table: what a feature is, and how it is trained.

A feature is data: how to build the model, how to train it, and which options the strategy takes.
"""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SEED = 7


def default_data(samples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Features of shape `(samples, 8)`, float32, and labels of 3 classes."""
    random = np.random.default_rng(SEED)
    x = random.normal(size=(samples, 8)).astype("float32")
    return x, (x @ random.normal(size=(8, 3))).argmax(axis=1)


def default_fit(
    model: keras.Model, samples: int = 64, validate: bool = False, **options: Any
) -> Outcome:
    """Two epochs in the given order."""
    x, y = default_data(samples)
    settings = {"batch_size": 16, "epochs": 2, **options}
    if validate:
        settings["validation_data"] = (x, y)
    history = model.fit(x, y, shuffle=False, verbose=0, **settings)
    return Outcome.of(model, history.history)


@dataclasses.dataclass
class Outcome:
    """What training gave.

    Attributes:
        weights: the model's weights.
        history: lists of floats by name.
        extra: further arrays to compare as weights are, by name.
    """

    weights: list[np.ndarray]
    history: dict[str, list[float]]
    extra: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: keras.Model, history: dict, **extra: Any) -> Outcome:
        arrays = {name: np.asarray(value, dtype="float64") for name, value in extra.items()}
        return cls(model.get_weights(), history, arrays)


def optimizer_state(model: keras.Model) -> np.ndarray:
    """Slots, number of updates and learning rate; all processes call this together."""
    state = getattr(model.optimizer, "parts_of_state", None)
    slots = state.joined(state.gather()) if state is not None else ()
    whole = {id(slot.variable): array for slot, array in slots}
    values = [whole[id(v)] if id(v) in whole else v.numpy() for v in model.optimizer.variables]
    joined = np.concatenate([np.ravel(value).astype("float64") for value in values])
    if state is not None:  # only the first process gets all parts
        (joined,) = model.distribute_strategy.processes.broadcast([joined], 0)
    return joined


@dataclasses.dataclass(frozen=True)
class Feature:
    """A row of the table.

    Attributes:
        name: what is tested.
        build: makes the compiled model.
        fit: trains it.
        options: the strategy's options.
        reference_build: makes the one-device model; None for `build`.
        reference_fit: trains the one-device model; None for `fit`.
        history: whether the histories are equal too; False where they are defined differently,
            which `note` explains.
        since: the first Keras version whose own part in it works on one device or on several.
        note: what the reader must know.
    """

    name: str
    build: Callable[[], keras.Model]
    fit: Callable[[keras.Model], Outcome] = default_fit
    options: dict = dataclasses.field(default_factory=dict)
    reference_build: Callable[[], keras.Model] | None = None
    reference_fit: Callable[[keras.Model], Outcome] | None = None
    history: bool = True
    since: tuple[int, int] = (3, 10)
    note: str = ""

    def __hash__(self) -> int:
        return hash(self.name)


def train_on_one_device(feature: Feature, jit_compile: bool = False) -> Outcome:
    """The outcome with plain Keras, to which all others are compared."""
    keras.utils.set_random_seed(SEED)
    model = _compiled((feature.reference_build or feature.build)(), jit_compile)
    return (feature.reference_fit or feature.fit)(model)


def _compiled(model: keras.Model, jit_compile: bool) -> keras.Model:
    if jit_compile and not model.run_eagerly:
        model.jit_compile = True
    return model


def train(
    feature: Feature, strategy: tf.distribute.Strategy, jit_compile: bool = False
) -> tuple[Outcome, keras.Model]:
    """The outcome under `strategy`, of an unchanged script but for the scope.

    With `jit_compile` XLA compiles the steps, unless the feature is an eager step.
    """
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = _compiled(feature.build(), jit_compile)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="BatchNormalization without")
        return feature.fit(model), model


def forget() -> None:
    """Clears what a training left in Keras, before the next one in this process.

    What TensorFlow keeps of it is not searched for garbage again, which takes longer each time.
    """
    keras.backend.clear_session()
    gc.freeze()
    keras.config.set_dtype_policy("float32")


def keep_imports_out_of_collections() -> None:
    """Makes Python's garbage collector skip what exists now, mostly TensorFlow's modules.

    Keras collects after each training, which takes 0.2 s otherwise: a fifth of a cell.
    """
    gc.collect()
    gc.freeze()
