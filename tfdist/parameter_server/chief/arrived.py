"""What the parts of a global batch amount to when some of the parts were dropped."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.parameter_server.gradients import Changes, Gradients, add, added, scaled
from tfdist.parameter_server.packing import unpack
from tfdist.parameter_server.worker.functional_step import FunctionalStep, is_summed
from tfdist.step.weighting import weigh


def mean_of_arrived(
    outcomes: Sequence[tuple[Gradients, Changes]], factor: tf.Tensor, step: FunctionalStep
) -> tuple[Gradients, Changes]:
    """Gradients and changes as of a smaller batch, all on one device.

    Each part has weighted them by its share of the global batch. Sums, such as those of metrics,
    stay as they are. What each part counts, such as random numbers drawn, counts once.

    Args:
        outcomes: gradients and changes of the parts that arrived.
        factor: 1 / the share of the samples that arrived.
        step: the step; tells which variable has which number.
    """
    gradients, _ = add([(of_part, {}) for of_part, _ in outcomes])
    changes: Changes = {}
    for _, packed in outcomes:
        for place, change in unpack(packed, step.changed).items():
            if is_summed(step.changed[int(place)]) or change.dtype.is_floating:
                changes[place] = added(changes.get(place), change)
            else:
                changes.setdefault(place, change)
    for place, change in changes.items():
        if change.dtype.is_floating and not is_summed(step.changed[int(place)]):
            changes[place] = weigh(change, factor)
    return scaled(gradients, factor), changes
