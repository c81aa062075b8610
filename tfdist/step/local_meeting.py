"""How replicas that have trained apart come to one model again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.compression.base import nbytes
from tfdist.local.choices import LocalSteps
from tfdist.local.fragments import plan_fragments
from tfdist.step import exchange
from tfdist.step.averaging import Averaging
from tfdist.step.local_means import average, mean_of
from tfdist.step.local_state import LocalState
from tfdist.step.local_traced import Trained
from tfdist.step.spans import EXCHANGE_OF_FRAGMENT, EXCHANGE_OF_ROUND, mark
from tfdist.step.update import Update


@dataclasses.dataclass(frozen=True)
class Moved:
    """What one replica has moved in the round of a fragment.

    Attributes:
        moves: for each trainable variable, from the end to the beginning; None for variables of
            other fragments, and for those that the optimizer does not train.
        averages: the moving averages of the weights.
        samples: how many samples the replica has used.
        present: how many it had.
        touched: 1 for each trainable variable that an update has trained.
        rounds: how many rounds of the fragment had ended before.
    """

    moves: list[tf.Tensor | None]
    averages: list[tf.Tensor]
    samples: tf.Tensor
    present: tf.Tensor
    touched: tf.Tensor
    rounds: tf.Tensor


class Meeting:
    """What the replicas exchange of one fragment; all methods run in replica context.

    Args:
        local: the user's choice.
        update: updates the variables.
        variables: the trainable variables.
        averaging: sums differences over the replicas, compressed if asked for.
        state: what the replicas have for themselves.
        bucket_bytes: upper bound of a bucket in bytes.
        number: the number of the fragment.
        places: the positions of its variables.

    Attributes:
        number: as given.
        places: as given.
    """

    def __init__(
        self,
        local: LocalSteps,
        update: Update,
        variables: Sequence[keras.Variable],
        averaging: Averaging,
        state: LocalState,
        bucket_bytes: int,
        number: int,
        places: list[int],
    ):
        self.number = number
        self.places = places
        self._local = local
        self._update = update
        self._variables = list(variables)
        self._averaging = averaging
        self._state = state
        self._bucket_bytes = bucket_bytes

    @property
    def exchange_name(self) -> str:
        """The name of what the replicas exchange here."""
        return f"{EXCHANGE_OF_FRAGMENT} {self.number}" if self._local.streams else EXCHANGE_OF_ROUND

    def _mine(self, trained: Trained) -> list[int]:
        """The positions of the variables that are exchanged."""
        return [i for i in self.places if id(self._variables[i]) not in trained.left_out]

    def _if_trained(
        self, place: int, trained: Trained, value: tf.Tensor, otherwise: tf.Tensor
    ) -> tf.Tensor:
        """`value` for a variable that the optimizer trains, else the other one."""
        if id(self._variables[place]) in trained.trained:
            return value
        is_trained = tf.convert_to_tensor(self._state.trained)[place] > 0
        return tf.where(is_trained, value, otherwise)

    def _set(self, place: int, trained: Trained, value: tf.Tensor) -> None:
        """Sets a variable, if the optimizer trains it."""
        variable = self._variables[place].value
        now = tf.convert_to_tensor(variable)
        variable.assign(self._if_trained(place, trained, value, now))

    def _of_averages(self) -> list[int]:
        """The positions of the moving averages that are exchanged with this fragment."""
        found = [a.value for a in compat.moving_averages(self._update.optimizer)]
        return plan_fragments([nbytes(a) for a in found], self._local.fragments)[self.number]

    @property
    def _averages(self) -> list[keras.Variable]:
        found = compat.moving_averages(self._update.optimizer)
        return [found[place] for place in self._of_averages()]

    def now(self, trained: Trained) -> Moved:
        """What this replica has moved by now.

        Args:
            trained: which variables the optimizer trains.
        """
        mine, state = self._mine(trained), self._state
        moves: list[tf.Tensor | None] = [None] * len(self._variables)
        for place in mine:
            weights = tf.convert_to_tensor(self._variables[place].value)
            move = state.anchor[place] - weights
            moves[place] = self._if_trained(place, trained, move, tf.zeros_like(move))
        return Moved(
            moves,
            [tf.convert_to_tensor(a.value) for a in self._averages],
            state.samples.read_value()[self.number],
            state.present.read_value()[self.number],
            tf.convert_to_tensor(state.touched),
            tf.convert_to_tensor(state.rounds)[self.number],
        )

    def measure(self, moved: Moved) -> tf.Tensor:
        """What this round comes to: samples, and how far the replicas have moved.

        Args:
            moved: what this replica has moved.

        Returns:
            A float32 matrix of two rows: the replicas' samples, and the sum of the squares of the
            norms of what they moved, times their samples. The first row is for the samples that
            they have used, the second for those that they had.
        """
        norm = _squared_norm(moved.moves)
        samples = tf.stack([moved.samples, moved.present])
        squares = tf.math.multiply_no_nan(norm, samples)
        own = tf.stack([samples, squares], axis=1)
        with mark(f"{self.exchange_name} begins", own):
            return exchange.all_reduce([own])[0]

    @staticmethod
    def has_moved(measured: tf.Tensor) -> tf.Tensor:
        """Whether replicas may have moved: they used samples, or set weights without an update."""
        return tf.logical_or(measured[0, 0] > 0, tf.not_equal(measured[1, 1], 0))

    def meet(self, measured: tf.Tensor, trained: Trained) -> None:
        """Gives every replica the same weights, after a round in which replicas have moved.

        If no replica has used a sample (gradients overflowed, or wait), each counts by those that
        it had: then the steps have set weights themselves.

        The mean of weights that obey a constraint need not do so, nor does an outer step from them.
        So the constraint follows, as it follows every update.

        Args:
            measured: the result of `measure`.
            trained: which variables the optimizer trains.
        """
        own = self.now(trained)
        samples, total, squares = weighed(measured, own)
        if self.sends_differences:
            means = self._mean_moves(own, tf.math.divide_no_nan(samples, total))
            for place, new in self._outer_step(means, own.touched).items():
                self._set(place, trained, new)
            average(self._averages, samples, total, self._bucket_bytes)
        else:
            mine, averages = self._mine(trained), self._averages
            weights = [tf.convert_to_tensor(self._variables[place].value) for place in mine]
            found = mean_of([*weights, *own.averages], samples, total, self._bucket_bytes)
            for place, mean in zip(mine, found):
                self._set(place, trained, mean)
            for variable, mean in zip(averages, found[len(mine) :]):
                variable.value.assign(mean)
            means = self.now(trained).moves
        self._note_drift(own, means, samples, total, squares)
        for place in self._mine(trained):
            self._constrain(place, trained)

    @property
    def sends_differences(self) -> bool:
        """Whether differences to the anchor travel, not weights."""
        compresses = self._averaging.compressed is not None
        return not self._local.averages or self._local.streams or compresses

    def begin(self) -> None:
        """Begins the next round of the fragment with the weights that there are."""
        for place in self.places:
            weights = tf.convert_to_tensor(self._variables[place].value)
            self._state.anchor[place].assign(weights)

    # --- steps --------------------------------------------------------------------------------

    def _note_drift(
        self,
        own: Moved,
        means: Sequence[tf.Tensor | None],
        samples: tf.Tensor,
        total: tf.Tensor,
        squares: tf.Tensor,
    ) -> None:
        """Notes how far the replicas had come apart, for the norm of what they moved together."""
        moved = _squared_norm(means)
        if self._averaging.compressed is None:
            # The mean square of the distances to the mean is the mean square less the square of
            # the mean, so nothing more has to travel.
            apart = tf.math.divide_no_nan(squares, total) - moved
        else:
            pairs = zip(own.moves, means)
            distances = _squared_norm([a - b for a, b in pairs if a is not None and b is not None])
            distances = tf.math.multiply_no_nan(distances, samples)
            apart = exchange.all_reduce([distances])[0] / total
        drift = tf.math.divide_no_nan(tf.sqrt(tf.maximum(apart, 0.0)), tf.sqrt(moved))
        self._state.drifts.assign_add(drift)
        self._state.drifts_measured.assign_add(tf.cast(moved > 0, tf.float32))

    def _mean_moves(self, own: Moved, share: tf.Tensor) -> list[tf.Tensor | None]:
        """What the replicas have moved in the mean.

        Args:
            own: what this replica has moved.
            share: this replica's share of the samples of the round.
        """
        moved = [
            None if move is None else tf.math.multiply_no_nan(move, tf.cast(share, move.dtype))
            for move in own.moves
        ]
        packing = self._averaging.packing(moved, accumulates=False)
        return self._averaging.sum(packing, packing.pack(moved), own.rounds)

    def _outer_step(
        self, means: Sequence[tf.Tensor | None], touched: tf.Tensor
    ) -> dict[int, tf.Tensor]:
        """Douillard et al., algorithm 1, lines 12 to 14, with SGD and Nesterov's momentum.

        Weights that no update of the round trains, such as those of a layer that is frozen by now,
        and that no replica has moved, stay as they are, and so does their momentum.

        Args:
            means: what the replicas have moved in the mean.
            touched: 1 for each variable that an update of the round has trained.

        Returns:
            The new weights by the position of the variable.
        """
        local, momenta = self._local, self._state.momentum
        new = {}
        for place, mean in enumerate(means):
            if mean is None:
                continue
            step = mean
            if momenta:
                moves = tf.logical_or(touched[place] > 0, tf.reduce_any(mean != 0))
                velocity = local.outer_decay * momenta[place] + mean
                momenta[place].assign(tf.where(moves, velocity, momenta[place]))
                step = tf.where(moves, mean + local.outer_decay * velocity, tf.zeros_like(mean))
            new[place] = self._state.anchor[place] - local.outer_rate * step
        return new

    def _constrain(self, place: int, trained: Trained) -> None:
        variable = self._variables[place]
        if variable.constraint is not None:
            weights = tf.convert_to_tensor(variable.value)
            self._set(place, trained, variable.constraint(weights))


def _squared_norm(tensors: Sequence[tf.Tensor | None]) -> tf.Tensor:
    squares = [
        tf.reduce_sum(tf.square(tf.cast(tensor, tf.float32)))
        for tensor in tensors
        if tensor is not None
    ]
    return tf.add_n(squares) if squares else tf.zeros([])


def weighed(measured: tf.Tensor, own: Moved) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The samples by which this replica counts, those of all, and the weighted sum of squares."""
    uses = measured[0, 0] > 0
    total, squares = tf.unstack(tf.where(uses, measured[0], measured[1]))
    return tf.where(uses, own.samples, own.present), total, squares
