"""How replicas that have trained apart come to one model again."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.current import current
from tfdist.local.choices import LocalSteps
from tfdist.step import exchange
from tfdist.step.averaging import Averaging
from tfdist.step.exchange import Packing, enough
from tfdist.step.local_state import LocalState
from tfdist.step.update import Update


class Meeting:
    """What the replicas exchange at the end of a round; all methods run in replica context.

    Args:
        local: the user's choice.
        update: updates the variables.
        variables: the trainable variables.
        averaging: sums differences over the replicas, compressed if asked for.
        state: what the replicas have for themselves.
        bucket_bytes: upper bound of a bucket in bytes.

    Attributes:
        sends_differences: whether differences to the anchor travel, not weights.
    """

    def __init__(
        self,
        local: LocalSteps,
        update: Update,
        variables: Sequence[keras.Variable],
        averaging: Averaging,
        state: LocalState,
        bucket_bytes: int,
    ):
        self._local = local
        self._update = update
        self._variables = list(variables)
        self._averaging = averaging
        self._state = state
        self._bucket_bytes = bucket_bytes
        self.sends_differences = not local.averages or averaging.compressed is not None

    @property
    def averages(self) -> list[keras.Variable]:
        """The moving averages of the weights that the optimizer keeps."""
        return compat.moving_averages(self._update.optimizer)

    def measure(self, left_out: set[int]) -> tf.Tensor:
        """What this round comes to: samples, and how far the replicas have moved.

        Args:
            left_out: ids of the trainable variables that the optimizer does not train.

        Returns:
            A float32 matrix of two rows: the replicas' samples, and the sum of the squares of the
            norms of what they moved, times their samples. The first row is for the samples that
            they have used, the second for those that they had.
        """
        moved = _squared_norm(self._moves(left_out))
        samples = tf.stack([self._state.samples.read_value(), self._state.present.read_value()])
        squares = tf.math.multiply_no_nan(moved, samples)
        return exchange.all_reduce([tf.stack([samples, squares], axis=1)])[0]

    @staticmethod
    def has_moved(measured: tf.Tensor) -> tf.Tensor:
        """Whether replicas may have moved: they used samples, or set weights without an update."""
        return tf.logical_or(measured[0, 0] > 0, tf.not_equal(measured[1, 1], 0))

    def meet(self, measured: tf.Tensor, left_out: set[int], constrained: set[int]) -> None:
        """Gives every replica the same weights, after a round in which replicas have moved.

        If no replica has used a sample (gradients overflowed, or wait), each counts by those that
        it had: then the steps have set weights themselves.

        The mean of weights that obey a constraint need not do so, nor does an outer step from them.
        So the constraint follows, as it follows every update.

        Args:
            measured: the result of `measure`.
            left_out: see `measure`.
            constrained: ids of the variables that the optimizer trains.
        """
        uses = measured[0, 0] > 0
        total, squares = tf.unstack(tf.where(uses, measured[0], measured[1]))
        state = self._state
        samples = tf.where(uses, state.samples.read_value(), state.present.read_value())
        kept = self.averages
        if self.sends_differences:
            own = self._moves(left_out)
            means = self._make_outer_step(tf.math.divide_no_nan(samples, total), left_out)
            self.average(kept, samples, total)
        else:
            weights = [v for v in self._variables if id(v) not in left_out]
            self.average([*weights, *kept], samples, total)
            own, means = [], self._moves(left_out)
        moved = _squared_norm(means)
        if self._averaging.compressed is None:
            # The mean square of the distances to the mean is the mean square less the square of
            # the mean, so nothing more has to travel.
            apart = tf.math.divide_no_nan(squares, total) - moved
        else:
            distances = _squared_norm([move - mean for move, mean in zip(own, means)])
            distances = tf.math.multiply_no_nan(distances, samples)
            apart = exchange.all_reduce([distances])[0] / total
        self._note_drift(apart, moved)
        for variable in self._variables:
            if variable.constraint is not None and id(variable) in constrained:
                weights = tf.convert_to_tensor(variable.value)
                variable.value.assign(variable.constraint(weights))

    def _moves(self, left_out: set[int]) -> list[tf.Tensor]:
        """What this replica has moved in the round, from the end to the beginning."""
        return [
            tf.cast(anchor - tf.convert_to_tensor(variable.value), tf.float32)
            for anchor, variable in zip(self._state.anchor, self._variables)
            if id(variable) not in left_out
        ]

    def _note_drift(self, apart: tf.Tensor, moved: tf.Tensor) -> None:
        """Notes how far the replicas had come apart, for the norm of what they moved together."""
        drift = tf.math.divide_no_nan(tf.sqrt(tf.maximum(apart, 0.0)), tf.sqrt(moved))
        self._state.drifts.assign_add(drift)
        self._state.drifts_measured.assign_add(tf.cast(moved > 0, tf.float32))

    def _make_outer_step(self, share: tf.Tensor, left_out: set[int]) -> list[tf.Tensor]:
        """Douillard et al., algorithm 1, lines 12 to 14, with SGD and Nesterov's momentum.

        Weights that no update of the round trains, such as those of a layer that is frozen by now,
        and that no replica has moved, stay as they are, and so does their momentum.

        Args:
            share: this replica's share of the samples of the round.
            left_out: see `measure`.

        Returns:
            What the replicas have moved in the mean, without what is left out.
        """
        local, anchors, momenta = self._local, self._state.anchor, self._state.momentum
        moved = [
            None
            if id(variable) in left_out
            else tf.math.multiply_no_nan(
                anchor - tf.convert_to_tensor(variable.value), tf.cast(share, anchor.dtype)
            )
            for anchor, variable in zip(anchors, self._variables)
        ]
        packing = self._averaging.packing(moved, accumulates=False)
        rounds = tf.convert_to_tensor(self._state.rounds)
        touched = tf.convert_to_tensor(self._state.touched)
        means = self._averaging.sum(packing, packing.pack(moved), rounds)
        for index, (anchor, mean) in enumerate(zip(anchors, means)):
            if mean is None:
                continue
            step = mean
            if momenta:
                moves = tf.logical_or(touched[index] > 0, tf.reduce_any(mean != 0))
                velocity = local.outer_decay * momenta[index] + mean
                momenta[index].assign(tf.where(moves, velocity, momenta[index]))
                step = tf.where(moves, mean + local.outer_decay * velocity, tf.zeros_like(mean))
            self._variables[index].value.assign(anchor - local.outer_rate * step)
        return [tf.cast(mean, tf.float32) for mean in means if mean is not None]

    def settle(self, variables: Sequence[keras.Variable], least: tf.DType) -> None:
        """Makes equal what steps have set besides the weights.

        Floats become the mean, weighted by the samples of the steps since the last time. Whole
        numbers have no mean: all replicas take those of the first one.

        Args:
            variables: what steps have set; the same variables in the same order everywhere.
            least: see `average`.
        """
        seen = self._state.seen.read_value()
        floats = [v for v in variables if v.value.dtype.is_floating]
        if floats:
            (total,) = exchange.all_reduce([tf.identity(seen)])
            self.average(floats, seen, total, least)
        for variable in variables:
            if not variable.value.dtype.is_floating:
                value = tf.convert_to_tensor(variable.value)
                first = current().broadcast(tf.cast(value, tf.int64))
                variable.value.assign(tf.cast(first, value.dtype))

    def average(
        self,
        variables: Sequence[keras.Variable],
        samples: tf.Tensor,
        total: tf.Tensor,
        least: tf.DType = tf.float32,
    ) -> None:
        """Sets variables to their mean, weighted by samples.

        What a replica without samples has is ignored, even if it is no number. Nothing changes if
        no replica had a sample that it could use.

        Args:
            variables: of floating-point dtypes.
            samples: how many samples this replica has used.
            total: the sum of `samples` over the replicas.
            least: the smallest dtype that travels. Half precision would round or overflow.
        """
        if not variables:
            return
        own = [tf.convert_to_tensor(variable.value) for variable in variables]
        wide = [tf.cast(v, least) if v.dtype.size < least.size else v for v in own]
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in wide]
        most = enough(sum(s.shape.num_elements() * s.dtype.size for s in specs), self._bucket_bytes)
        packing = Packing(wide, specs, most)
        packed = [
            tf.math.multiply_no_nan(flat, tf.cast(samples, flat.dtype))
            for flat in packing.pack(wide)
        ]
        sums = packing.unpack(packing.sum(packed))
        for variable, value, weighted in zip(variables, own, sums):
            mean = tf.cast(weighted / tf.cast(total, weighted.dtype), value.dtype)
            variable.value.assign(tf.where(total > 0, mean, value))


def _squared_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in tensors])
