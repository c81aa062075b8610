"""One unit's way through one step: from its gradients to their sum, and to what is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.compression.base import Compressor, Payload, Result, Step
from tfdist.stages.compression_state import residual
from tfdist.stages.compression_units import Unit


class UnitStep:
    """What one replica does for one unit in one step.

    Variables without a dense gradient have no part in it; what is kept of them waits.

    Args:
        unit: the unit.
        compressor: what the unit's compressor is in this step.
        variables: the unit's state.
        dense: gradients by the variable's index.
        step: seeds.

    Attributes:
        unit: the unit, without variables that have no dense gradient.
        compressor: as given.
        payload: what is to travel next; None when all has arrived.
    """

    def __init__(
        self,
        unit: Unit,
        compressor: Compressor,
        variables: dict[str, tf.Variable],
        dense: Mapping[int, tf.Tensor],
        step: Step,
    ):
        self.unit = unit.only(dense)
        self.compressor = compressor
        self._planned = unit
        self._variables = variables
        self._gradient = self._joined(dense)
        self._corrected = self._gradient
        self._state = {name: self._taken(v.read_value()) for name, v in variables.items()}
        kept = self._state.pop(residual, None)
        if kept is not None:
            self._corrected += kept
        self._check_shapes()
        self._exchange = compressor.exchange(self._corrected, dict(self._state), step)
        self._sent_bytes = 0
        self._result: Result | None = None
        self.payload: Payload | None = None
        self._hand_out(next(self._exchange))

    def _hand_out(self, payload: Payload) -> None:
        self.payload = payload
        self._sent_bytes += sum(_nbytes(tensor) for tensor in payload)

    def receive(self, received: Payload) -> None:
        """Takes what has arrived, and has the next payload, if there is one."""
        try:
            self._hand_out(self._exchange.send(received))
        except StopIteration as end:
            self.payload, self._result = None, end.value
            self._check_bytes()

    def measured(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The gradient, what was sent of it and of earlier ones, and what was not sent."""
        assert self._result is not None
        kept = self._result.kept
        own = self._result.own
        return self._gradient, own, self._corrected - own if kept is None else kept

    def finish(self) -> dict[int, tf.Tensor]:
        """Keeps the state; gives the sums by variable."""
        assert self._result is not None
        for name, value in self._result.state.items():
            if value is not self._state[name]:
                self._keep(name, value)
        if residual in self._variables:
            self._keep(residual, self._corrected - self._result.own)
        bucket = self.unit.bucket
        parts = tf.split(tf.reshape(self._result.total, [-1]), bucket.sizes)
        return {
            index: tf.cast(tf.reshape(part, shape), bucket.dtype)
            for index, shape, part in zip(bucket.indices, bucket.shapes, parts)
        }

    def _joined(self, dense: Mapping[int, tf.Tensor]) -> tf.Tensor:
        """The gradients as the compressor sees them."""
        flat = [
            tf.cast(tf.reshape(dense[index], [-1]), tf.float32)
            for index in self.unit.bucket.indices
        ]
        return tf.reshape(tf.concat(flat, axis=0), self.unit.spec.shape)

    def _is_whole(self, value: tf.Tensor) -> bool:
        """Whether an entry of the state is left as it is: else it has a part for each variable."""
        return self.unit == self._planned or value.shape != self._planned.spec.shape

    def _taken(self, value: tf.Tensor) -> tf.Tensor:
        """The part of an entry of the state that belongs to this step's variables."""
        if self._is_whole(value):
            return value
        bucket = self._planned.bucket
        parts = zip(bucket.indices, tf.split(value, bucket.sizes))
        return tf.concat([p for index, p in parts if index in self.unit.bucket.indices], axis=0)

    def _keep(self, name: str, value: tf.Tensor) -> None:
        """Inverse of `_taken`: changes the part of this step's variables."""
        variable = self._variables[name]
        if not self._is_whole(variable):
            bucket = self._planned.bucket
            new = dict(zip(self.unit.bucket.indices, tf.split(value, self.unit.bucket.sizes)))
            old = zip(bucket.indices, tf.split(variable.read_value(), bucket.sizes))
            value = tf.concat([new.get(index, part) for index, part in old], axis=0)
        variable.assign(value)

    def _check_shapes(self) -> None:
        """Raises ValueError for a state that cannot do without some of the unit's variables."""
        if self.unit == self._planned:
            return
        wanted = {n: tuple(v.shape) for n, v in self.compressor.init(self.unit.spec).items()}
        found = {name: tuple(value.shape) for name, value in self._state.items()}
        if any(found[name] != shape for name, shape in wanted.items()):
            raise ValueError(
                f"The state of {self.compressor} depends on the length of its gradient, and some "
                "of the variables that share a bucket have no dense gradient. Give the compressor "
                "`per_tensor = True`, or choose other compression for these variables. "
                f"Received: state {found}, needed: {wanted}"
            )

    def _check_bytes(self) -> None:
        """Raises ValueError unless as much has travelled as the compressor says."""
        said = self.compressor.wire_bytes(self.unit.spec)
        if self._sent_bytes != said:
            raise ValueError(
                f"`wire_bytes` of {self.compressor} must be the bytes of its payload, for "
                f"gradients of shape {self.unit.spec.shape}: {self._sent_bytes}. "
                f"Received: wire_bytes={said}"
            )


def _nbytes(tensor: Any) -> int:
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            "A payload's tensors must have static shapes, as all replicas send equally many bytes. "
            f"Received: {tensor}"
        )
    return math.prod(tensor.shape) * tensor.dtype.size
