"""A fragment that is exchanged while its replicas go on: sent, then exchanged, then merged."""

from __future__ import annotations

import tensorflow as tf

from tfdist.step.averaging import residuals_of
from tfdist.step.local_means import average, mean_of
from tfdist.step.local_meeting import Meeting, Moved, weighed
from tfdist.step.local_sent import Sent
from tfdist.step.local_traced import Trained
from tfdist.step.vectors import with_value


class Overlapped(Meeting):
    """What the replicas exchange of one fragment, while they go on; made as a `Meeting`.

    What the replicas have sent is in their state.
    """

    @property
    def _sent(self) -> Sent:
        assert self._state.sent is not None
        return self._state.sent

    @property
    def _residuals(self) -> list[tf.Variable]:
        return residuals_of(self._averaging, self.places)

    @property
    def _repeated(self) -> list[tf.Variable]:
        return self._sent.repeated[self.number]

    def send(self, trained: Trained) -> None:
        """Notes what this replica has moved by now, to be exchanged while it goes on."""
        own, sent = self.now(trained), self._sent
        for place in self._mine(trained):
            sent.moves[place].assign(own.moves[place])
        for place, value in zip(self._of_averages(), own.averages):
            sent.averages[place].assign(value)
        for kept, value in ((sent.samples, own.samples), (sent.present, own.present)):
            kept.assign(with_value(kept.read_value(), [self.number], value))

    def sent(self, trained: Trained) -> Moved:
        """What this replica had moved when it sent that."""
        sent = self._sent
        moves: list[tf.Tensor | None] = [None] * len(self._variables)
        for place in self._mine(trained):
            moves[place] = tf.convert_to_tensor(sent.moves[place])
        return Moved(
            moves,
            [tf.convert_to_tensor(sent.averages[place]) for place in self._of_averages()],
            sent.samples.read_value()[self.number],
            sent.present.read_value()[self.number],
            tf.convert_to_tensor(sent.touched),
            tf.convert_to_tensor(self._state.rounds)[self.number] - 1,
        )

    def exchange(self, measured: tf.Tensor, trained: Trained) -> None:
        """Puts the means over the replicas in the place of what they have sent.

        Args:
            measured: the result of `measure` for what was sent.
            trained: see `now`.
        """
        own, sent = self.sent(trained), self._sent
        samples, total, squares = weighed(measured, own)
        before = [residual.read_value() for residual in self._residuals]
        means = self._mean_moves(own, tf.math.divide_no_nan(samples, total))
        for place in self._mine(trained):
            sent.moves[place].assign(means[place])
        averages = mean_of(own.averages, samples, total, self._bucket_bytes)
        for place, mean in zip(self._of_averages(), averages):
            sent.averages[place].assign(mean)
        for residual, old, repeated in zip(self._residuals, before, self._repeated):
            repeated.assign(residual.read_value() - old)
        self._note_drift(own, means, samples, total, squares)

    def merge(self, mixing: float | tf.Tensor, trained: Trained) -> None:
        """Takes α w + (1 − α) v, where w are the weights by now, and v those of the outer step.

        w has all that the replica had moved, v only what the replicas have sent of it. So of what
        coding has left over, the share α is in the next move. Error feedback would send it again.

        Source: Douillard et al. (arXiv 2501.18512), algorithm 2.

        Args:
            mixing: α; 0 to take v.
            trained: see `now`.
        """
        found = self.sent(trained)
        weights = self._outer_step(found.moves, found.touched)
        self.begin()  # for what is left out
        for place, new in weights.items():
            variable, anchor = self._variables[place], self._state.anchor[place]
            own = tf.convert_to_tensor(variable.value)
            self._set(place, trained, new)
            self._constrain(place, trained)
            anchor.assign(tf.convert_to_tensor(variable.value))
            self._set(place, trained, _mixed(own, tf.convert_to_tensor(anchor), mixing))
            self._constrain(place, trained)
        for variable, mean in zip(self._averages, found.averages):
            own = tf.convert_to_tensor(variable.value)
            variable.value.assign(_mixed(own, mean, mixing))
        for residual, repeated in zip(self._residuals, self._repeated):
            again = tf.math.multiply_no_nan(repeated.read_value(), tf.cast(mixing, repeated.dtype))
            residual.assign(residual.read_value() - again)
            repeated.assign(again)

    def go_back(self, trained: Trained) -> None:
        """Takes the fragment's anchor, where no replica has gone on since what was merged last."""
        for place in self._mine(trained):
            self._set(place, trained, tf.convert_to_tensor(self._state.anchor[place]))
        for residual, repeated in zip(self._residuals, self._repeated):
            residual.assign(residual.read_value() + repeated.read_value())
            repeated.assign(tf.zeros_like(repeated))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        average(self._averages, tf.ones([]), tf.constant(float(replicas)), self._bucket_bytes)


def _mixed(own: tf.Tensor, new: tf.Tensor, mixing: float | tf.Tensor) -> tf.Tensor:
    """α own + (1 − α) new; exactly `new` where α is 0."""
    share = tf.cast(mixing, own.dtype)
    return tf.where(share > 0, share * own + (1 - share) * new, new)
