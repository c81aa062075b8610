"""What workers already have of the weights, where the chief makes the updates.

A worker's copies stay on the worker, and the chief holds them. Copies of values that do not change
are used again. From copies of the others, where differences are coded, the next values are made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.parameter_server.packing import device_of
from tfdist.parameter_server.pull import PullCodec
from tfdist.parameter_server.reading import Reading
from tfdist.parameter_server.worker.traced import Traced

Values = dict[str, tf.Tensor]


class Known(NamedTuple):
    """What a worker has of the coded values: the same numbers twice.

    Attributes:
        there: on the parameter servers.
        here: on the worker.
    """

    there: Values
    here: Values


class Pulls:
    """Gives workers the weights. A worker's thread asks for that worker only.

    Each reading gives the copies on both sides at once. So they agree whatever becomes of the work
    item for which they were made.

    Args:
        reading: how values travel.
        codec: codes values; None for nothing.
    """

    def __init__(self, reading: Reading, codec: PullCodec | None):
        self._reading = reading
        self._codec = codec
        self._copies = Traced(self._copied)
        self._code = Traced(self._coded)
        self.begin_run()

    def begin_run(self) -> None:
        """Begins anew: somebody may have changed any value, and values travel whole at first."""
        self.known: dict[int, Known] = {}
        self._fixed: dict[int, tuple[Values, Values]] = {}

    def forget(self, worker: int) -> None:
        """Called when a worker is lost."""
        self.known.pop(worker, None)
        self._fixed.pop(worker, None)

    def __call__(self, values: Values, worker: int, version: int) -> Values:
        """The values for the worker of the present device; called in the worker's thread.

        Args:
            values: all values, on the parameter servers.
            worker: the index of the worker.
            version: the version of the values.
        """
        return values | self._fixed_for(values, worker) | self._coded_for(values, worker, version)

    def _fixed_for(self, values: Values, worker: int) -> Values:
        wanted = {key: values[key] for key in self._reading.fixed}
        kept = self._fixed  # a thread of an earlier run must not write into a later run's
        before, copies = kept.get(worker, ({}, {}))
        if any(before.get(key) is not value for key, value in wanted.items()):
            copies = self._copy(wanted)
            kept[worker] = wanted, copies
        return copies

    def _coded_for(self, values: Values, worker: int, version: int) -> Values:
        if self._codec is None or not self._reading.coded:
            return {}
        wanted = {key: values[key] for key in self._reading.coded}
        numbers = np.array([version, worker], np.int64)
        if not self._codec.codes_differences:
            return self._code(wanted, None, numbers).here
        kept = self.known
        known = kept.get(worker)
        if known is None:
            known = kept[worker] = Known(wanted, self._copy(wanted))
        else:
            known = kept[worker] = self._code(wanted, known, numbers)
        return known.here

    def _copy(self, values: Values) -> Values:
        # A list: values of other keys may have the same types.
        return dict(zip(values, self._copies(list(values.values()))))

    # --- on the worker --------------------------------------------------------------------------

    def _copied(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        # TensorFlow would leave out `tf.identity`, and give back the values on the server.
        return [tf.raw_ops.DeepCopy(x=value) for value in values]

    def _coded(self, values: Values, known: Known | None, numbers: tf.Tensor) -> Known:
        """What the worker has next.

        Args:
            values: the values, on the parameter servers.
            known: what the worker has; None where values themselves are coded.
            numbers: the version of the values, and the index of the worker.
        """
        assert self._codec is not None
        there, here = {}, {}
        for key, value in values.items():
            at_server, at_worker = (None, None) if known is None else (of[key] for of in known)
            with tf.device(device_of(key, self._reading.parts)):
                payload = self._codec.encode(key, value, at_server, *tf.unstack(numbers))
                if known is not None:
                    there[key] = self._codec.decode(payload, at_server, value)
            here[key] = self._codec.decode(payload, at_worker, value)
        return Known(there, here)
