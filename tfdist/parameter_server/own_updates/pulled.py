"""How a call of a worker's function gets the weights, for as many updates as the call makes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.own_updates.one_server import OneServer
from tfdist.parameter_server.own_updates.several_servers import SeveralServers
from tfdist.parameter_server.packing import device_of
from tfdist.parameter_server.pull import PullCodec

Values = dict[str, tf.Tensor]


class Pulled:
    """The weights in a call. What this makes is part of the graph that is being traced.

    Values that nothing changes are read once. Where differences are coded, the first values travel
    whole. So nothing is kept between calls, and a lost worker leaves nothing behind.

    What the parameter server knows of a worker is in a variable there. If it were a variable of the
    loop, it would travel to the worker and back: TensorFlow gives the results of a loop's body no
    device.

    Args:
        servers: reads values.
        codec: codes values; None for nothing.
        worker: the index of the worker.

    Attributes:
        state: what goes from one update to the next on the worker: what it has of each coded value.
    """

    def __init__(
        self, servers: OneServer | SeveralServers, codec: PullCodec | None, worker: tf.Tensor
    ):
        self._reading = reading = servers.reading
        self._codec = codec
        self._worker = worker
        coded = reading.coded if codec is not None and codec.codes_differences else ()
        first: Values = {}
        if reading.fixed or coded:
            first = servers.values([*reading.fixed, *coded])
        self._fixed = {key: tf.identity(first[key]) for key in reading.fixed}
        self._known = {}
        for key in coded:
            with self._place(key):
                self._known[key] = compat.CallVariable(first[key])
        self.state = [tf.identity(first[key]) for key in coded]

    def on_worker(
        self, values: Values, number: tf.Tensor, state: Sequence[tf.Tensor]
    ) -> tuple[Values, Sequence[tf.Tensor]]:
        """All values as the worker gets them, and the next state.

        Args:
            values: the values of the keys that change, on the parameter servers.
            number: int scalar on the parameter server, different for each reading of the worker.
            state: as the attribute, or as returned here.
        """
        if self._codec is None:
            return {**values, **self._fixed}, state
        coded = self._reading.coded
        got = {}
        for key, copy in zip(coded, state or [None] * len(coded)):
            value = values[key]
            with self._place(key):
                known = None if copy is None else self._known[key].read()
                payload = self._codec.encode(key, value, known, number, self._worker)
                if known is not None:
                    self._known[key].assign(self._codec.decode(payload, known, value))
            got[key] = self._codec.decode(payload, copy, value)
        return {**values, **got, **self._fixed}, [got[key] for key in coded] if state else []

    def _place(self, key: str) -> contextlib.AbstractContextManager:
        return tf.device(device_of(key, self._reading.parts))
