"""Models with a step of their own are built by that step, as other calls may miss layers."""

from __future__ import annotations

import concurrent.futures
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.data import batches
from tfdist.step import collection, end_of_data, replica
from tfdist.step.logs import has_own
from tfdist.step.weighting import Share
from tfdist.strategies import wrapping
from tfdist.structures import Structure

_STEPS = ("train_step", "test_step")

_beyond_steps: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class _UnchangedVariables(keras.StatelessScope):
    """Delays the creation of variables, and leaves existing variables unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self._asks_variable = False

    def add_update(self, update: tuple) -> None:
        """Drops the new value, as tapes ask for the variable itself."""

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The variable's own value, or its placeholder; regularizers need the value from here."""
        if self._asks_variable:
            return None
        self._asks_variable = True
        try:
            return variable.value
        finally:
            self._asks_variable = False


def build_by_step(strategy: tf.distribute.Strategy, model: keras.Model, data: Structure) -> bool:
    """Traces a model's own step, so that the variables of the model are created.

    The model may have no `call`, or one that the step does not use. Without this trace the
    variables would be created while the replicas trace the step, where processes cannot agree on
    them.

    Args:
        strategy: the strategy in whose scope variables are created.
        model: the model.
        data: what the run reads: a distributed data set, or a tuple as one batch.

    Returns:
        Whether the model has a step of its own, and that step has built it.
    """
    spec = batches.spec(data) if isinstance(data, tuple) else strategy.batch_spec(data)
    if spec is None:
        return False
    step = _step_that_builds(model, spec)
    if step is None:
        return False
    wrapping.wrap_optimizers(model)
    beyond = _beyond_steps.setdefault(model, {}).setdefault(step.__name__, weakref.WeakSet())
    if not _unbuilt(model) - set(beyond):
        return True
    try:
        _trace_until_built(strategy, model, step, spec)
    except Exception:
        if model.run_eagerly and type(model).call is not keras.Model.call:
            return False  # an eager step may do what a function cannot
        raise
    beyond.update(_unbuilt(model))
    return True


def _unbuilt(model: keras.Model) -> set[Any]:
    """What the step may build; also a loss scale, as a step may read it before it is built."""
    optimizer = getattr(model, "optimizer", None)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not optimizer.built
    return {*compat.unbuilt_parts(model), *([optimizer] if scales else [])}


def _step_that_builds(model: keras.Model, spec: Structure) -> Callable | None:
    """The step of the current run of `model`, if Keras itself cannot build the model; else None.

    Keras cannot in three cases: the step is the model's own; the loss is the model's own and may
    call more layers; or the batches are ragged.
    """
    running = end_of_data.running_step(model)
    names = _STEPS if running is None else (running,)
    ragged = any(isinstance(leaf, tf.RaggedTensorSpec) for leaf in tf.nest.flatten(spec))
    for name in names:
        methods = (name,) if name == "predict_step" else (name, "compute_loss")
        if ragged or any(has_own(model, method) for method in methods):
            return getattr(model, name)
    return None


def _trace_until_built(
    strategy: tf.distribute.Strategy, model: keras.Model, step: Callable, spec: Structure
) -> None:
    """Traces again until it succeeds: variables must exist before a gradient by them can."""
    state_of_thread = compat.StateOfThread(strategy)

    def trace() -> None:
        with state_of_thread.adopted():
            _trace(strategy, model, step, spec)

    while True:
        unbuilt = _unbuilt(model)
        try:
            # A new thread is in no strategy's scope: the step runs there as on one replica.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                return thread.submit(trace).result()
        except Exception:
            if _unbuilt(model) != unbuilt:
                continue
            if unbuilt != {getattr(model, "optimizer", None)}:
                raise
            with strategy.scope():
                model.optimizer.build(model.trainable_variables)


def _trace(
    strategy: tf.distribute.Strategy, model: keras.Model, step: Callable, spec: Structure
) -> None:
    running = replica.ReplicaStep(0, 1, Share(1.0), own_loop=False, exchanges=False)
    unbuilt: list[tuple[compat.IndexedOptimizer, list]] = []

    def trace(batch: Structure) -> None:
        gathered = collection.Collected(builds_later=True)
        with collection.collect(gathered) as collected, replica.publish(running):
            step(batch)
        unbuilt.extend(collected.unbuilt)

    variables = _UnchangedVariables()
    variables.__enter__()
    try:
        tf.function(trace, autograph=False).get_concrete_function(spec)
    finally:
        with strategy.scope():
            variables.__exit__(None, None, None)
    with strategy.scope():
        for optimizer, its_variables in unbuilt:
            # A step may name them as `tape.watched_variables()` does.
            optimizer.build(optimizer.keras_variables(its_variables, model.variables))
