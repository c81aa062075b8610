"""The functions that Keras' loops call for their batches: one operation of the group for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.batches import as_tensors
from tfdist.elastic import traces
from tfdist.elastic.group import Group
from tfdist.elastic.local_rounds import GroupRounds
from tfdist.elastic.operations import Step
from tfdist.elastic.windows import Window
from tfdist.structures import Structure


class Accumulated(Protocol):
    """The gradients that a rank accumulates for a model."""

    def own(self) -> list[tf.Variable]:
        """The variables that they are in; none without accumulation."""

    def is_waiting(self) -> bool:
        """Whether they wait for an update; the same in all ranks."""


class ElasticFunction:
    """Takes the place of Keras' functions of a model; traces anew when the group has changed.

    Args:
        group: the ranks.
        model: the model.
        step: does one step with a batch.
        accumulated: the gradients that wait.
        read: the variables that are read between steps.

    Attributes:
        number: of the window of its accumulated gradients.
    """

    _kind = ""
    _takes_in = False

    def __init__(
        self,
        group: Group,
        model: keras.Model,
        step: Callable[[Structure], Structure],
        accumulated: Accumulated,
        read: Callable[[], Sequence[tf.Variable]],
    ):
        self._group = group
        self._model = model
        self._step = step
        self._accumulated = accumulated
        self._traced: tuple[int, Callable[[Structure], Structure]] = (-1, step)
        self._read = read
        self._is_first = True
        self.number = group.windows.new_number()

    def step(self, batch: Structure) -> Structure:
        """The results of a step with `batch`, the same in all ranks; a part of an operation."""
        if self._model.run_eagerly:
            return self._step_of_group(batch)
        generation, function = self._traced
        if generation != self._group.generation:
            function = self._new_function()
            self._traced = (self._group.generation, function)
        return function(batch)

    def new_step(self) -> Callable[[Structure], Structure]:
        """As `step`, traced anew: all ranks trace it, also those that have a trace of a step.

        Ranks number what they exchange while they trace, and must count alike.
        """
        return self._step_of_group if self._model.run_eagerly else self._new_function()

    def trace(self, batch: Structure) -> None:
        """Makes the variables that a step with `batch` makes; in this process alone."""
        if self._model.run_eagerly:
            self._step_of_group(batch)
        else:
            self._new_function().get_concrete_function(batch)

    def _new_function(self) -> tf.types.experimental.PolymorphicFunction:
        # TensorFlow warns when one and the same Python function is traced again and again.
        step = functools.partial(self._step_of_group)
        return tf.function(step, reduce_retracing=True, autograph=False)

    def _step_of_group(self, batch: Structure) -> Structure:
        with traces.of_generation(self._group.generation):
            return self._step(batch)

    def forget_trace(self) -> None:
        """Makes the next step be traced anew."""
        self._traced = (-1, self._step)

    def of_batch(self, batch: Structure) -> Structure:
        """The results of a step with `batch`, the same in all ranks."""
        return self._executed(batch)

    def _executed(self, batch: Structure, window: int | None = None) -> Structure:
        is_first, self._is_first = self._is_first, False
        step = Step(
            self.step,
            self.trace,
            batch,
            self._group.made,
            self._kind,
            makes_variables=is_first,
            read=self._read,
            window=window,
            takes_in=self._takes_in,
        )
        return self._group.execute(step)


class StepsFunction(ElasticFunction):
    """Keras' function of `evaluate`: several steps with the batches of an iterator."""

    _kind = "test step"

    def __call__(self, iterator: Iterator[Structure]) -> Structure:
        """The results of the last of `steps_per_execution` steps; fewer if the data end."""
        results, steps = None, self._model.steps_per_execution
        for _ in range(steps):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if results is not None:
                    break
                if steps > 1:
                    raise StopIteration from None
                raise tf.errors.OutOfRangeError(None, None, "End of data") from None
            results = self.of_batch(batch)
        return results


class TrainFunction(StepsFunction):
    """Keras' function of `fit`. It keeps the batches whose gradients wait for an update.

    Attributes:
        rounds: lets ranks that train apart meet; None if all steps are synchronous.
    """

    _kind = "train step"
    _takes_in = True
    _opened = 0
    rounds: GroupRounds | None = None

    def of_batch(self, batch: Structure) -> Structure:
        """The results of a step with `batch`, the same in all ranks."""
        group, own = self._group, self._accumulated.own()
        if not own:
            return super().of_batch(batch)
        if group.windows.get(self.number) is None:
            self._open_window(own)
        return self._executed(as_tensors(batch), self.number)  # the user may write to arrays again

    def begin_anew(self) -> None:
        """Called when accumulated gradients were read from a file, by all ranks.

        Each rank has then an equal part of them.
        """
        self._group.windows.close(self.number)
        if self._accumulated.is_waiting():
            own, size = self._accumulated.own(), self._group.size
            self._open_window(own, [size * variable.numpy() for variable in own])

    def _open_window(self, own: list[tf.Variable], totals: Sequence[np.ndarray] = ()) -> None:
        window = Window(
            self.new_step, self._group.made, own, totals, self._opened, self._accumulated.is_waiting
        )
        self._opened += 1
        window.begin(is_first=self._group.rank == 0)
        self._group.windows.open(self.number, window)


class PredictFunction(ElasticFunction):
    """Keras' function of `predict`: the predictions for several batches."""

    _kind = "predict step"

    def __call__(self, batches: Sequence[Structure]) -> Structure:
        """The predictions for all samples of `batches`."""
        results = [self.of_batch(batch) for batch in batches]
        if len(results) == 1:
            return results[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)


def without_optionals(batch: Structure) -> Any:
    """`batch` with None where Keras' data adapters mark what is not there."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )
