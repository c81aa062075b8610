"""Models with a step of their own are built by that step: no other call need reach all of them."""

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
from tfdist.step.weighting import Share
from tfdist.strategies import wrapping
from tfdist.structures import Structure

_STEPS = ("train_step", "test_step")

_beyond_steps: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class _UnchangedVariables(keras.StatelessScope):
    """Puts off the making of variables, and keeps those that exist as they are."""

    def __init__(self) -> None:
        super().__init__()
        self._asks_variable = False

    def add_update(self, update: tuple) -> None:
        """Forgets the new value, as tapes ask for the variable itself."""

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The variable's own value, or what stands for it: regularizers ask for no other."""
        if self._asks_variable:
            return None
        self._asks_variable = True
        try:
            return variable.value
        finally:
            self._asks_variable = False


def build_by_step(strategy: tf.distribute.Strategy, model: keras.Model, data: Structure) -> bool:
    """Traces a model's own step, for the variables that it makes.

    The model may have no `call`, or one that the step does not use. Without the trace the variables
    would be made while the replicas trace the step, where processes cannot agree on them.

    Args:
        strategy: where the variables are made.
        model: the model.
        data: what the run reads: a distributed data set, or a tuple as one batch.

    Returns:
        Whether the model has a step of its own that has built it.
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
            return False  # what a step does eagerly may be impossible in a function
        raise
    beyond.update(_unbuilt(model))
    return True


def _unbuilt(model: keras.Model) -> set[Any]:
    """What the step may build: a loss scale too, since the step may read it before it uses it."""
    optimizer = getattr(model, "optimizer", None)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not optimizer.built
    return {*compat.unbuilt_parts(model), *([optimizer] if scales else [])}


def _step_that_builds(model: keras.Model, spec: Structure) -> Callable | None:
    """The step that the present run of `model` takes, where Keras' own building cannot do.

    That is a step of the model's own, one whose loss is the model's own and may call more layers,
    or any step of ragged batches, which Keras cannot build from.
    """
    running = end_of_data.running_step(model)
    names = _STEPS if running is None else (running,)
    ragged = any(isinstance(leaf, tf.RaggedTensorSpec) for leaf in tf.nest.flatten(spec))
    for name in names:
        methods = (name,) if name == "predict_step" else (name, "compute_loss")
        if ragged or any(getattr(type(model), m) is not getattr(keras.Model, m) for m in methods):
            return getattr(model, name)
    return None


def _trace_until_built(
    strategy: tf.distribute.Strategy, model: keras.Model, step: Callable, spec: Structure
) -> None:
    """Traces until it succeeds: there is no gradient by a variable that does not exist yet."""
    state_of_thread = compat.StateOfThread(strategy)

    def trace() -> None:
        with state_of_thread.adopted():
            _trace(strategy, step, spec)

    while True:
        unbuilt = _unbuilt(model)
        try:
            # A thread of its own is in no strategy's scope: its context is that of one replica.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                return thread.submit(trace).result()
        except Exception:
            if _unbuilt(model) != unbuilt:
                continue
            if unbuilt != {getattr(model, "optimizer", None)}:
                raise
            with strategy.scope():
                model.optimizer.build(model.trainable_variables)


def _trace(strategy: tf.distribute.Strategy, step: Callable, spec: Structure) -> None:
    running = replica.ReplicaStep(0, 1, Share(1.0), own_loop=False, exchanges=False)
    unbuilt: list[tuple[keras.optimizers.Optimizer, list]] = []

    def trace(batch: Structure) -> None:
        with collection.collect(builds_later=True) as collected, replica.publish(running):
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
            optimizer.build(its_variables)
