"""What a worker computes, in the form in which it travels and is added up.

The keys are numbers as text, as functions of TensorFlow want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.compression.base import State
from tfdist.step import loss_scale
from tfdist.step.adding import added
from tfdist.step.weighting import weigh
from tfdist.structures import Gradient, Structure

Gradients = dict[str, dict[str, Gradient]]
"""By the number of the optimizer among the step's `optimizers`; then by the number of the variable,
or part of a variable, among those that the optimizer was built for. On their way, small ones are
packed; see `packing`."""

Changes = dict[str, tf.Tensor]
"""By the number of the variable, or part of a variable, in the list `changed` of the step; packed
like gradients."""

Unsent = dict[str, list[State]]
"""What compression has left unsent: for each optimizer, the states of its units."""


class Outcome(NamedTuple):
    """The result of a step, or of a work item: then sums over the steps of the work item.

    Attributes:
        gradients: the gradients of the weights.
        changes: what numeric variables grew by.
        assigned: the new values of other variables.
        logs: what the last step returned. In the chief, None stands for the metrics' results.
    """

    gradients: Gradients
    changes: Changes
    assigned: Changes
    logs: Structure


def add(outcomes: Sequence[tuple[Gradients, Changes]]) -> tuple[Gradients, Changes]:
    """The sums of gradients and changes, all on one device.

    A value that only one outcome has is taken as it is: some steps may not apply an optimizer.
    """
    gradients: Gradients = {}
    changes: Changes = {}
    for more, change in outcomes:
        for key, by_variable in more.items():
            total = gradients.setdefault(key, {})
            for place, gradient in by_variable.items():
                total[place] = added(total.get(place), gradient)
        for key, value in change.items():
            changes[key] = added(changes.get(key), value)
    return gradients, changes


def are_finite(gradients: Gradients) -> tf.Tensor:
    """Whether all gradients are finite, a bool scalar."""
    return loss_scale.all_finite_here([g for of in gradients.values() for g in of.values()])


def scaled(gradients: Gradients, factor: tf.Tensor) -> Gradients:
    """All gradients times a number, on one device."""
    return {
        key: {place: weigh(g, factor) for place, g in by_variable.items()}
        for key, by_variable in gradients.items()
    }
