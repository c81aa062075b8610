"""What metrics count in a round in which the ranks train apart, and the sums over all ranks.

A rank counts its own samples. Where the ranks meet, and where somebody looks, the sums are made of
what each rank has added in the round. So what a lost rank has counted is lost with its steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass
class _Count:
    """A variable of a metric.

    Attributes:
        variable: of this process.
        base: its value where the round began, or to which it was set since; the same in all ranks.
        now: its value after the last step, or to which it was set since.
    """

    variable: tf.Variable
    base: tf.Tensor
    now: tf.Tensor


class RoundMetrics:
    """Counts what a rank's own steps add to metrics.

    Callbacks may set metrics between two steps, as `reset_metrics` does, in all ranks alike. Then
    only what is counted from there on is this rank's own.

    Args:
        variables: returns the variables in which the metrics of a model count, in one order.
        total: sums a tensor over the ranks.
    """

    def __init__(
        self,
        variables: Callable[[keras.Model], list[tf.Variable]],
        total: Callable[[tf.Tensor], tf.Tensor],
    ):
        self._variables = variables
        self._total = total
        self._counts: list[_Count] = []

    def begin(self, model: keras.Model) -> None:
        """Called where a round begins."""
        values = [(variable, variable.read_value()) for variable in self._variables(model)]
        self._counts = [_Count(variable, value, value) for variable, value in values]

    def look(self) -> None:
        """Called before anything is done with the metrics: somebody may have set them."""
        for count in self._counts:
            value = count.variable.read_value()
            # No number is asked for here: the device may still be at the last step.
            is_same = tf.reduce_all(tf.equal(value, count.now))
            count.base = tf.where(is_same, count.base, value)
            count.now = value

    def note_step(self) -> None:
        """Called after each step of this rank."""
        for count in self._counts:
            count.now = count.variable.read_value()

    def end(self) -> None:
        """Called where the round has ended."""
        self._counts = []

    def totals(self) -> list[np.ndarray]:
        """What the metrics have counted in all ranks; called by all.

        It does not depend on what the variables are now: in a rank that joins they are those of
        another rank, which brings its part itself.
        """
        base = [count.base.numpy() for count in self._counts]
        added = [count.now.numpy() - b for count, b in zip(self._counts, base)]
        found = list(base)
        for dtype in dict.fromkeys(value.dtype for value in added):
            places = [place for place, value in enumerate(added) if value.dtype == dtype]
            flat = np.concatenate([added[place].ravel() for place in places])
            sums = self._total(tf.constant(flat)).numpy()
            ends = np.cumsum([added[place].size for place in places])[:-1]
            for place, part in zip(places, np.split(sums, ends)):
                found[place] = base[place] + part.reshape(base[place].shape)
        return found

    def set_totals(self) -> None:
        """Gives all ranks these sums; called by all."""
        self._assign(self.totals())

    def results(self, model: keras.Model, totals: Sequence[np.ndarray]) -> dict:
        """The results of the metrics of `model` for `totals`; they go on with what they have."""
        self._assign(totals)
        results = model.get_metrics_result()
        self._assign([count.now for count in self._counts])
        return results

    def _assign(self, values: Sequence[np.ndarray | tf.Tensor]) -> None:
        for count, value in zip(self._counts, values, strict=True):
            count.variable.assign(value)
