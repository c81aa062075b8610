"""A train function that goes on when a parameter server was lost and is back."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.parameter_server.chief.keras_function import KerasFunction
from tfdist.parameter_server.chief.scheduler import Scheduler, WorkersLostError
from tfdist.parameter_server.devices import CHIEF
from tfdist.structures import Structure


class RecoveringFunction(KerasFunction):
    """Goes back to the last snapshot, and begins the rest of the epoch as a new run.

    The batches of lost updates are not trained on again; those of unfinished work items are.
    """

    _logs: Structure = None

    def safely(self, function: Callable, *arguments: object) -> Structure:
        """What a function returns; calls it again if a parameter server was lost meanwhile."""
        while True:
            try:
                return function(*arguments)
            except (tf.errors.OpError, WorkersLostError) as error:
                self._restore(error)
                self.close()

    def _restore(self, error: Exception) -> None:
        """Goes back to the last snapshot, or raises the error; the run must be closed then."""
        if isinstance(self.schedule, Scheduler):
            self.schedule.halt()
        self.strategy.snapshots.restore(error, self._lose)
        self._forget_traces()
        self._restores = self.strategy.snapshots.restores
        self._logs = self.model.get_metrics_result()

    def _lose(self, version: int) -> int:
        """Loses updates after update `version`; see `Snapshots.restore`."""
        del version
        return 0

    def _fetch_logs(self) -> None:
        """Brings the logs to the chief, where Keras reads them in any case."""
        if self.strategy.snapshots.can_restore:
            with tf.device(CHIEF):
                self._logs = tf.nest.map_structure(_fetched, self._logs, expand_composites=True)


def _fetched(value: Structure) -> Structure:
    return tf.identity(value) if isinstance(value, tf.Tensor) else value
