"""A train function whose workers need not be sent all weights anew for each update."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import keras
import tensorflow as tf

from tfdist.parameter_server.chief.pulls import Pulls
from tfdist.parameter_server.chief.recovering import RecoveringFunction
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.pull import codec_of
from tfdist.parameter_server.reading import Reading, may_be_fixed
from tfdist.parameter_server.work_item import WorkItem
from tfdist.structures import Structure


class PullingFunction(RecoveringFunction):
    """Codes the weights that workers read, and sends those once that nothing changes."""

    _acting: keras.callbacks.Callback | None = None  # may change weights between two batches
    _pulls: Pulls | None = None

    def _reading(self, spec: Structure) -> Reading:
        if self.strategy.pull is None and not may_be_fixed(self.step):
            return super()._reading(spec)
        self._on_worker.explore(spec)
        reading = Reading.of(self.step, self.strategy.pull)
        if self.strategy.pull is not None and not reading.coded:
            warnings.warn(
                "`pull_compression` compresses no weight of this model: trained weights of fewer "
                "bytes than `min_bytes`, and those that are read by rows, travel as they are. "
                f"Received: pull_compression={self.strategy.pull}",
                stacklevel=2,
            )
        return reading

    def _trace(self, source: Source, spec: Structure) -> None:
        super()._trace(source, spec)
        reading = self.updates.reading
        if self._pulls is None and (reading.fixed or reading.coded):
            self._pulls = Pulls(reading, codec_of(self.strategy))
        if self._pulls is not None:
            self._pulls.begin_run()

    def _values_for(self, item: WorkItem) -> dict[str, tf.Tensor]:
        values, pulls = super()._values_for(item), self._pulls  # another thread may forget them
        return values if pulls is None else pulls(values, item.worker, item.version)

    def _renew(self, values: Mapping[str, tf.Tensor]) -> None:
        """Takes the values after an update of what updates change."""
        self.values = {**self.values, **values}
        if self._acting is not None:
            self.values.update(self.updates.values(self.updates.reading.fixed))

    def _note(self, worker: int, error: Exception | None) -> None:
        super()._note(worker, error)
        if error is not None and self._pulls is not None:
            self._pulls.forget(worker)

    def _forget_traces(self) -> None:
        super()._forget_traces()
        self._pulls = None
