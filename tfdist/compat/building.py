"""How Keras builds a model, its losses and its metrics before the first step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfdist.compat.models import flatten_layers, model_strategy
from tfdist.compat.registry import KERAS, READ, REPLACED, WRITTEN, touch
from tfdist.structures import Structure

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
_BY_SPEC: dict[str, str] = {
    "why": "Keras builds a model from a batch: a generator never gives this batch again. And "
    "Keras averages the batch over the replicas: this fails for strings, sparse tensors and "
    "uneven parts",
    "versions": KERAS,
    "instead": "a trainer that builds the model from `element_spec`, by its step",
}
_MAYBE_BUILD = touch(
    *(_TRAINER, "_maybe_symbolic_build", REPLACED, "self", "iterator", "data_batch"), **_BY_SPEC
)
_BUILD = touch(
    *("keras.src.trainers.trainer:Trainer", "_symbolic_build", READ),
    *("self", "iterator", "data_batch"),
    **_BY_SPEC,
)
_DATA = touch(
    *("keras.src.backend.tensorflow.trainer:TFEpochIterator", "_distributed_dataset", READ),
    **_BY_SPEC,
)
_COMPILED = [
    touch(
        *("keras.src.trainers.trainer:Trainer", name, READ),
        why="a model with its own step is built by running this step, which also builds what "
        "Keras has not built yet",
        versions=KERAS,
        instead="a public `built` of compiled losses and metrics",
    )
    for name in ("_compile_loss", "_compile_metrics")
]
_BUILT = {
    name: touch(
        *(f"keras.src.trainers.compile_utils:{name}", "built", WRITTEN),
        why="Keras cannot build losses and metrics from batches without targets, and fails",
        versions=KERAS,
        instead="a trainer that leaves out losses and metrics without targets",
    )
    for name in ("CompileLoss", "CompileMetrics")
}


def hook_symbolic_build(
    batch_spec: Callable[[Any, Any], Any], build_by_step: Callable[[Any, keras.Model, Any], bool]
) -> None:
    """Makes Keras build models from `batch_spec(strategy, data set)` instead of from a batch.

    `batch_spec` returns the structure of one batch as type specs, or None for Keras' own way.

    To build a model Keras calls it, but a model with a step of its own need not be callable. So
    `build_by_step(strategy, model, data)` is tried first. It gets a data set or one batch, and
    returns whether it has built the model.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def _maybe_symbolic_build(
            self: keras.Model, iterator: Any = None, data_batch: Structure = None
        ) -> None:
            strategy = model_strategy(self)
            data = data_batch if iterator is None else _DATA.of(iterator)
            if strategy is not None and build_by_step(strategy, self, data):
                return
            if iterator is not None and strategy is not None:
                spec = batch_spec(strategy, data)
                if spec is not None:
                    unbuilt = _unbuilt_without_targets(self, spec)
                    with strategy.scope(), _taken_as_built(unbuilt):
                        _BUILD.of(self)(data_batch=spec)
                    return
            original(self, iterator=iterator, data_batch=data_batch)

        return _maybe_symbolic_build

    _MAYBE_BUILD.replace(make)


def unbuilt_parts(model: keras.Model) -> list[Any]:
    """What Keras has not built yet: layers of `model`, and the loss and metrics of `compile`."""
    parts = [*flatten_layers(model), *_compiled(model)]
    return [part for part in parts if part is not None and not part.built]


def _compiled(model: keras.Model) -> list[Any]:
    return [part.of(model) for part in _COMPILED]


def _unbuilt_without_targets(model: keras.Model, batch_spec: Structure) -> list[Any]:
    """The loss and metrics that Keras cannot build because the batches have no targets."""
    _, targets, _ = keras.utils.unpack_x_y_sample_weight(batch_spec)
    parts = _compiled(model) if targets is None else []
    return [part for part in parts if part is not None and not part.built]


@contextlib.contextmanager
def _taken_as_built(parts: list[Any]) -> Iterator[None]:
    for part in parts:
        _BUILT[type(part).__name__].write(part, True)
    try:
        yield
    finally:
        for part in parts:
            _BUILT[type(part).__name__].write(part, False)
