"""Gradients that each rank accumulates: if a rank is lost, they are computed anew.

Until the update, each rank has only its own part of the sums. So the batches since the last update
are kept, and after a loss the ranks that are left compute the gradients of these batches again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.elastic.state import Made, Snapshot
from tfdist.structures import Structure


class Window:
    """The batches of a model since its last update.

    Args:
        new_step: makes what does a step with a batch, together with the other ranks.
        made: the variables of all models.
        own: those with a rank's own sums.
        totals: for each of those, the sum over all ranks before the first of these batches; none
            for zeros.
        serial: how many windows of this model there were before; the same in all ranks.
        is_waiting: whether gradients wait for an update.

    Attributes:
        batches: those of the steps that this rank has completed, or has been told the results of.
        own: as above.
        totals: as above.
        serial: as above.
        is_waiting: as above.
        start: what all ranks have alike at its beginning.
    """

    def __init__(
        self,
        new_step: Callable[[], Callable[[Structure], Structure]],
        made: Made,
        own: Sequence[tf.Variable],
        totals: Sequence[np.ndarray],
        serial: int,
        is_waiting: Callable[[], bool],
    ):
        self.batches: list[Structure] = []
        self.own = list(own)
        self.serial = serial
        self.is_waiting = is_waiting
        self._new_step = new_step
        self._made = made
        self.totals = totals
        self.start = self._common()

    def _common(self) -> Snapshot:
        """What all ranks have alike now."""
        own = {id(variable) for variable in self.own}
        return Snapshot({n: v for n, v in self._made.alive().items() if id(v) not in own})

    @property
    def waits(self) -> bool:
        """Whether something has been accumulated."""
        return bool(self.batches) or len(self.totals) > 0

    def begin_from_now(self, totals: Sequence[np.ndarray]) -> None:
        """Takes the values that the variables have now for those at its beginning.

        Args:
            totals: as for the class.
        """
        self.start, self.totals = self._common(), totals

    def do_again(self, *more: Structure, is_first: bool) -> None:
        """Computes the sums of all ranks anew; called by all, for equally many batches.

        Args:
            more: batches of steps that others have completed, and this rank has not.
            is_first: whether this is rank 0.
        """
        now, step = self._common(), self._new_step()
        try:
            self.start.restore()
            self.begin(is_first=is_first)
            for batch in (*self.batches, *more):
                step(batch)
        finally:
            now.restore()

    def begin(self, *, is_first: bool) -> None:
        """Gives rank 0 what had been accumulated before the first batch."""
        self.clear()
        if is_first:
            for variable, total in zip(self.own, self.totals):
                variable.assign(total)

    def clear(self) -> None:
        """Sets this rank's own sums to zero, as after an update."""
        for variable in self.own:
            variable.assign(tf.zeros_like(variable))


class Windows:
    """The open windows of all models, by numbers that are the same in all ranks.

    Attributes:
        made: how many numbers there are.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, Window] = {}
        self.made = 0

    def new_number(self) -> int:
        """A number for a model; ranks ask for them in the same order."""
        self.made = next(self._numbers) + 1
        return self.made - 1

    def open(self, number: int, window: Window) -> None:
        """Notes that gradients of a model may wait."""
        self._open[number] = window

    def close(self, number: int) -> None:
        """Notes that no gradients of a model wait."""
        self._open.pop(number, None)

    def add(self, number: int | None, batch: Structure) -> None:
        """Notes a step that is complete: its batch waits for the update, or was the last before it.

        Args:
            number: of the window that the step belongs to; None for none.
            batch: of the step.
        """
        if number is None:
            return
        window = self._open.get(number)
        if window is not None and window.is_waiting():
            window.batches.append(batch)
        else:
            self.close(number)

    def get(self, number: int) -> Window | None:
        """The open window of a model."""
        return self._open.get(number)

    def own(self) -> list[tf.Variable]:
        """The variables with a rank's own sums, as far as something waits."""
        return [v for window in self._open.values() if window.waits for v in window.own]

    def lengths(self, made: int) -> np.ndarray:
        """The serial number and the length of each open window, or -1: of shape `[made, 2]`."""
        found = np.full((made, 2), -1, np.int64)
        for number, window in self._open.items():
            found[number] = window.serial, len(window.batches)
        return found
