"""What the ranks of a group do together, so that it can be repeated when a rank is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.elastic.state import Made, Snapshot
from tfdist.structures import Structure


class Operation(Protocol):
    """Something that all ranks do together, in the same order: all of them complete it, or none.

    Attributes:
        window: the number of the window of accumulated gradients that it belongs to; None for none.
        batch: what it adds to that window.
        kind: a name for operations that do the same.
        takes_in: whether ranks may join before it.
        makes_variables: whether `run` may make variables.
    """

    window: int | None
    batch: Structure
    kind: str
    takes_in: bool
    makes_variables: bool

    def begin(self) -> None:
        """Called before `run`."""

    def run(self) -> Any:
        """Does it, together with the other ranks; the result is the same in all of them."""

    def make_variables(self) -> None:
        """Makes the variables that `run` would make; in this process alone."""

    def handed_over(self) -> Snapshot:
        """What ranks get that join before it, from this one; it has not run yet."""

    def undo(self) -> None:
        """Takes back what `run` may have changed in this process before it failed."""

    def end(self) -> Snapshot | None:
        """Called once it is completed. Returns what it has come to; None if it changes nothing."""

    def kept(self) -> Mapping[int, np.ndarray]:
        """The values of variables, by number, that a rank needs which has not run it, only passed.

        Those of all variables it gets when it joins.
        """


class Sum(Operation):
    """A sum of numbers over the ranks, which changes nothing.

    Args:
        run: makes the sum.
        kind: as in `Operation`.
    """

    window = None
    batch = None
    takes_in = False
    makes_variables = False

    def __init__(self, run: Callable[[], Any], kind: str = "sum"):
        self._run = run
        self.kind = kind

    def begin(self) -> None:
        """Nothing."""

    def run(self) -> Any:
        """The sum."""
        return self._run()

    def make_variables(self) -> None:
        """Nothing."""

    def handed_over(self) -> Snapshot:
        """Nothing: no rank joins before a sum."""
        return Snapshot({})

    def undo(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""
        return None

    def kept(self) -> Mapping[int, np.ndarray]:
        """None."""
        return {}


class Step(Operation):
    """One step of a model.

    Args:
        step: does a step with a batch.
        trace: makes the variables that this makes.
        batch: the batch.
        made: the variables, of all models.
        name: the kind of step.
        makes_variables: as in `Operation`.
        read: the variables that are read between steps.
        window: as in `Operation`.
        takes_in: as in `Operation`.
    """

    def __init__(
        self,
        step: Callable[[Structure], Structure],
        trace: Callable[[Structure], None],
        batch: Structure,
        made: Made,
        name: str,
        *,
        makes_variables: bool,
        read: Callable[[], Sequence[tf.Variable]],
        window: int | None = None,
        takes_in: bool = False,
    ):
        self.batch = batch
        self.window = window
        self.kind = name
        self.takes_in = takes_in
        self.makes_variables = makes_variables
        self._read = read
        self._step = step
        self._trace = trace
        self._made = made
        self._before: Snapshot | None = None

    def begin(self) -> None:
        """Keeps the values of the variables."""
        self._before = Snapshot(self._made.alive())

    def run(self) -> Structure:
        """The step's results."""
        return self._step(self.batch)

    def make_variables(self) -> None:
        """Makes the variables of the model that the step makes."""
        self._trace(self.batch)

    def handed_over(self) -> Snapshot:
        """The values of the variables, which are those of all ranks between two steps."""
        return Snapshot(self._made.alive())

    def undo(self) -> None:
        """Gives the variables their values back.

        Raises:
            RuntimeError: when the step has made variables, whose first values nobody knows.
        """
        assert self._before is not None
        made = self._made.alive().keys() - self._before.values.keys()
        if made:
            name = self._made.alive()[min(made)].name
            raise RuntimeError(
                "A rank was lost in the first step of a model, which makes variables, so the step "
                "cannot be repeated. Build the model and its optimizers before. "
                f"Received: {len(made)} variables that the step made, such as {name}"
            )
        self._before.restore()

    def end(self) -> Snapshot:
        """The values of the variables after the step."""
        self._before = None
        return Snapshot(self._made.alive())

    def kept(self) -> Mapping[int, np.ndarray]:
        """The values of the variables that are read between steps."""
        known = {id(variable): number for number, variable in self._made.alive().items()}
        found = [variable for variable in self._read() if id(variable) in known]
        return {known[id(variable)]: variable.numpy() for variable in found}
