"""What metrics count in a round in which the ranks train apart, and the sums over all ranks.

A rank counts its own samples. Where the ranks meet, and where somebody looks, the sums are made of
what each rank has added in the round. So what a lost rank has counted is lost with its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.elastic.state import Snapshot

_MOST_SEEN = 16  # copies of all metrics; then they are compared, for which the device is awaited


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
        self._counted: list[tf.Variable] = []
        # Their values where the round began, or to which they were set since; alike in all ranks.
        self._base: list[np.ndarray] = []
        # Their values after the last step, or to which they were set since.
        self._now: list[tf.Tensor] = []
        # For each look, their values after the step before, and then.
        self._seen: list[tuple[list[tf.Tensor], list[tf.Tensor]]] = []

    def begin(self, model: keras.Model) -> None:
        """Called where a round begins."""
        self._counted = self._variables(model)
        self._now = self._read()
        self._base = [value.numpy() for value in self._now]

    def look(self) -> None:
        """Called before anything is done with the metrics: somebody may have set them.

        No number is asked for yet, as the device may still be at the last step.
        """
        values = self._read()
        self._seen.append((self._now, values))
        self._now = values
        if len(self._seen) >= _MOST_SEEN:
            self._base_by_now()

    def note_step(self) -> None:
        """Called after each step of this rank."""
        self._now = self._read()

    def end(self) -> None:
        """Called where the round has ended."""
        self._counted, self._base, self._now, self._seen = [], [], [], []

    def totals(self) -> list[np.ndarray]:
        """What the metrics have counted in all ranks; called by all.

        It does not depend on what the variables are now: in a rank that joins they are those of
        another rank, which brings its part itself.
        """
        base = self._base_by_now()
        added = [value.numpy() - b for value, b in zip(self._now, base)]
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
        self._assign(self._now)
        return results

    def _base_by_now(self) -> list[np.ndarray]:
        for before, values in self._seen:
            for place, (old, new) in enumerate(zip(before, values)):
                # By their bits, as a NaN is not equal to itself.
                if old.numpy().tobytes() != new.numpy().tobytes():
                    self._base[place] = new.numpy()
        self._seen.clear()
        return list(self._base)

    def _read(self) -> list[tf.Tensor]:
        return list(Snapshot(dict(enumerate(self._counted))).values.values())

    def _assign(self, values: Sequence[np.ndarray | tf.Tensor]) -> None:
        for variable, value in zip(self._counted, values, strict=True):
            variable.assign(value)
