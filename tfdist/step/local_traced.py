"""What is known of an optimizer's local steps once they are traced: which variables they set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Trained:
    """Which of the trainable variables an optimizer trains; ids.

    A step may train other variables than the steps that were traced before it. So of a variable in
    neither set, only `LocalState.trained` tells, while steps run.

    Attributes:
        left_out: no gradient has moved these: others train them, or nobody. They do not travel.
        trained: these have had a gradient.
    """

    left_out: set[int]
    trained: set[int]


class TracedSteps:
    """What is noted of the steps of an optimizer while they are traced.

    Args:
        variables: the trainable variables.

    Attributes:
        variables: the same.
        trained: ids of those that have had a gradient in a step.
        is_applied: whether a step applies the optimizer.
        in_loops: whether a step of a user's own loop does.
        changed: what steps set besides these; None before.
        most_updates: how many updates a step makes at most.
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self.variables = list(variables)
        self.trained: set[int] = set()
        self.is_applied = self.in_loops = False
        self.changed: list[keras.Variable] | None = None
        self.most_updates = 1
        self._updates_of_step = 0  # of the step that is traced
        self._touches = [0] * len(self.variables)  # of the step that is traced
        self._least = tf.float32  # the smallest dtype in which `changed` travels
        self._are_eager = True

    def note_trained(self, gradients: Sequence[object], variables: list[keras.Variable]) -> None:
        """Notes which variables have a gradient."""
        now = {id(v) for v, g in zip(variables, gradients) if g is not None}
        self.trained |= now
        self._touches = self._places_of(now)

    def note_changed(self, variables: list[keras.Variable]) -> None:
        """Notes what a step sets besides the weights that it trains.

        Without a graph there may be variables among these that no step sets. In float64 the mean of
        equal numbers is this number, to the bit. So there may be too many, and a round ends with
        those of all steps.

        Raises:
            ValueError: if a step in a graph, and another step of this optimizer, set other things.
        """
        is_eager = tf.executing_eagerly()
        if is_eager:
            self._least = tf.float64
        self._are_eager = self._are_eager and is_eager
        before = variables if self.changed is None else self.changed
        if self._are_eager:
            self.changed = list({id(v): v for v in [*before, *variables]}.values())
            return
        if {id(variable) for variable in before} != {id(variable) for variable in variables}:
            raise ValueError(
                "With `local`, all steps of an optimizer must set the same variables besides the "
                "weights, as a round may end with each of them. Let all steps set these variables, "
                "or use an optimizer for each kind of step. Received: steps that set "
                f"{[v.path for v in before]} and {[v.path for v in variables]}"
            )
        self.changed = list(variables)

    def note_trained_by_any(self, trained: set[int]) -> None:
        """Notes, after an eager step, which variables meet with the optimizers that train them.

        Before the first update of an optimizer its weights are not known to be trained.
        """
        if self.changed is not None:
            self.changed = [v for v in self.changed if id(v) not in trained]

    @property
    def _trained(self) -> Trained:
        every = {id(variable) for variable in self.variables}
        return Trained(every - self.trained, set(self.trained))

    def _places_of(self, ids: set[int]) -> list[int]:
        """For each trainable variable, whether it is one of these: 1 or 0."""
        return [int(id(variable) in ids) for variable in self.variables]
