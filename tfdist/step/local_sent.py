"""What replicas have sent of fragments, and not merged yet."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.step.local_variables import count_of_each, counter, like


class Sent(tf.Module):
    """What the replicas have sent and not merged yet; then the means of that.

    Made in the strategy's scope.

    Args:
        variables: the trainable variables.
        averages: the moving averages of the weights.
        residuals: what error feedback keeps, by fragment; a variable for each unit.

    Attributes:
        moves: what each replica had moved; once that has been exchanged, its mean.
        averages: the same of the moving averages.
        samples: how many samples each replica had used, by fragment.
        present: how many it had.
        touched: 1 for each trainable variable that an update had trained.
        pending: 1 for each fragment that was sent and not merged; the same on all replicas.
        exchanged: 1 for those of these that have been exchanged; the same on all replicas.
        has_moved: 1 for those of these of which replicas had moved; the same on all replicas.
        repeated: the part of `residuals` that the replicas' next moves have in them too.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        averages: Sequence[keras.Variable],
        residuals: Sequence[Sequence[tf.Variable]],
    ):
        super().__init__(name="sent")
        fragments = len(residuals)
        self.moves = [like(v, "sent") for v in variables]
        self.averages = [like(v, "sent_average") for v in averages]
        self.samples = count_of_each("sent_samples", tf.float32, [fragments])
        self.present = count_of_each("sent_present", tf.float32, [fragments])
        self.touched = counter("sent_touched", [len(variables)])
        self.pending, self.exchanged, self.has_moved = (
            counter(f"sent_{name}", [fragments]) for name in ("pending", "exchanged", "has_moved")
        )
        self.repeated = [
            [count_of_each("sent_repeated", r.dtype, r.shape) for r in of_fragment]
            for of_fragment in residuals
        ]

    def start_anew(self) -> None:
        """Nothing is under way; in cross-replica context."""
        for flags in (self.pending, self.exchanged, self.has_moved):
            flags.assign(tf.zeros_like(tf.convert_to_tensor(flags)))
        for variable in (v for of_fragment in self.repeated for v in of_fragment):
            for own in tf.distribute.get_strategy().experimental_local_results(variable):
                own.assign(tf.zeros_like(own))
