"""What the parts of a global batch amount to when some of the parts were dropped."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.parameter_server.gradients import Changes, Gradients, add, scaled
from tfdist.parameter_server.packing import unpack
from tfdist.parameter_server.worker.functional_step import FunctionalStep, is_summed
from tfdist.step.adding import added
from tfdist.step.weighting import weigh


def mean_of_arrived(
    outcomes: Sequence[tuple[Gradients, Changes]],
    counts: tf.Tensor,
    factor: tf.Tensor,
    step: FunctionalStep,
) -> tuple[Gradients, Changes]:
    """Gradients and changes as of a smaller batch, all on one device.

    Each part has weighted them by its share of the global batch. Sums, such as those of metrics,
    stay as they are. What each part counts, such as random numbers drawn, counts once.

    Args:
        outcomes: gradients and changes of the parts that arrived, and of any part for others.
        counts: float32 vector, 1.0 for those that arrived; 0.0 for others. The first one is 1.0.
        factor: 1 / the share of the samples that arrived.
        step: the step; tells which variable has which number.
    """
    own = tf.unstack(counts, len(outcomes))
    weighted = [scaled(of_part, factor * count) for (of_part, _), count in zip(outcomes, own)]
    gradients, _ = add([(of_part, {}) for of_part in weighted])
    changes: Changes = {}
    for (_, packed), count in zip(outcomes, own):
        for place, change in unpack(packed, step.changed).items():
            if is_summed(step.changed[int(place)]):
                change = tf.where(count > 0, change, tf.zeros_like(change))
                changes[place] = added(changes.get(place), change)
            elif change.dtype.is_floating:
                changes[place] = added(changes.get(place), weigh(change, factor * count))
            else:
                changes.setdefault(place, change)
    return gradients, changes
