"""One unit in one step: from its gradients to their sum, and to the state that is kept."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import tensorflow as tf

from tfdist.compression.base import Compressor, Payload, Result, State, Step
from tfdist.engines.hosts import Hosts
from tfdist.step.compression_state import residual
from tfdist.step.compression_units import Unit
from tfdist.structures import Gradient, Structure


def is_compressed(gradient: Gradient, compressor: Compressor) -> bool:
    """Whether a gradient is compressed; sparse ones are not, unless the compressor has momentum."""
    if isinstance(gradient, tf.IndexedSlices):
        return compressor.keeps_momentum
    return gradient is not None


def seeds(seed: int, unit: Unit, number: tf.Tensor, sender: tf.Tensor, replicas: int) -> Step:
    """The random numbers of a unit's step.

    Args:
        seed: the strategy's option `seed`.
        unit: the unit, with all of its variables.
        number: int scalar, the number of updates so far.
        sender: int32 scalar, the replica that sends.
        replicas: the number of replicas.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    of_unit = zlib.crc32(f"{seed} {unit.bucket.indices}".encode()) & 0x7FFFFFFF
    common = fold_in(tf.constant([of_unit, 0], tf.int32), tf.cast(number, tf.int32))
    return Step(common, fold_in(common, sender), replicas)


class UnitStep:
    """What one replica does for one unit in one step.

    Variables without a dense gradient take no part in the step; their state stays as it is.

    Args:
        unit: the unit.
        compressor: the unit's compressor at this step.
        state: the unit's state.
        dense: gradients by the variable's index.
        step: seeds.
        hosts: the replicas by host, if they are grouped: then this is what a host does. Each of its
            replicas keeps an equal part of the host's state, so that the sum over all replicas is
            what all hosts have.

    Attributes:
        unit: the unit, without variables that have no dense gradient.
        compressor: the unit's compressor at this step.
        payload: the next payload to send; None when all has arrived.
        sent: the payloads so far.
    """

    def __init__(
        self,
        unit: Unit,
        compressor: Compressor,
        state: State,
        dense: Mapping[int, tf.Tensor],
        step: Step,
        hosts: Hosts | None = None,
    ):
        self._hosts = hosts
        self.unit = unit.only(dense)
        self.compressor = compressor
        self._planned = unit
        self._planned_state = state
        self._own_gradient = self._joined(dense)
        own = {name: self._taken(value) for name, value in state.items()}
        kept = own.pop(residual, None)
        corrected = self._own_gradient if kept is None else self._own_gradient + kept
        self._corrected = self._of_host(corrected)
        self._state = {
            name: self._of_host(value) if self._has_parts(name, value) else value
            for name, value in own.items()
        }
        self._check_shapes()
        self._exchange = compressor.exchange(self._corrected, dict(self._state), step)
        self._result: Result | None = None
        self.sent: list[Payload] = []
        self._sent_bytes = 0
        self.payload: Payload | None = None
        self._hand_out(next(self._exchange))

    def _hand_out(self, payload: Payload) -> None:
        self.payload = payload
        self.sent.append(payload)
        self._sent_bytes += sum(_nbytes(tensor) for tensor in payload)

    def receive(self, received: Payload) -> None:
        """Takes what has arrived, and prepares the next payload, if there is one."""
        try:
            self._hand_out(self._exchange.send(received))
        except StopIteration as end:
            self.payload, self._result = None, end.value
            self._check_bytes()

    def receive_own(self) -> None:
        """Like `receive`, where no other replica sends anything."""
        own = self.payload or ()
        is_sum = self.compressor.aggregation == "sum"
        self.receive(own if is_sum else tuple(tensor[None] for tensor in own))

    def measured(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The gradient, what was sent (also from earlier gradients), and what was not sent."""
        assert self._result is not None
        kept = self._result.kept
        own = self._result.own
        gradient = self._of_host(self._own_gradient)
        return gradient, own, self._corrected - own if kept is None else kept

    def kept(self) -> State:
        """The entries of the state that have changed, for the next step."""
        assert self._result is not None
        changed = {
            name: value
            for name, value in self._result.state.items()
            if value is not self._state[name]
        }
        if residual in self._planned_state:
            changed[residual] = self._corrected - self._result.own
        if self._hosts is not None:
            for name, value in changed.items():
                if self._has_parts(name, value):
                    changed[name] = value / self._hosts.replicas
        return {name: self._put_back(name, value) for name, value in changed.items()}

    def totals(self) -> dict[int, tf.Tensor]:
        """The sums over the replicas, by variable."""
        assert self._result is not None
        return self.unit.divided(self._result.total)

    def _joined(self, dense: Mapping[int, tf.Tensor]) -> tf.Tensor:
        """The gradients as the compressor sees them."""
        flat = [
            tf.cast(tf.reshape(dense[index], [-1]), tf.float32)
            for index in self.unit.bucket.indices
        ]
        return tf.reshape(tf.concat(flat, axis=0), self.unit.spec.shape)

    def _of_host(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas of this host; `value` if they are not grouped."""
        return value if self._hosts is None else self._hosts.sum_within(value)

    def _has_parts(self, name: str, value: tf.Tensor) -> bool:
        """Whether each replica of a host has a part of this entry of the host's state."""
        return name not in self.compressor.shared_state and value.dtype.is_floating

    def _is_whole(self, value: tf.Tensor) -> bool:
        """Whether an entry of the state stays undivided; else it has a part for each variable."""
        return self.unit == self._planned or value.shape != self._planned.spec.shape

    def _taken(self, value: tf.Tensor) -> tf.Tensor:
        """The part of an entry of the state that belongs to this step's variables."""
        if self._is_whole(value):
            return value
        bucket = self._planned.bucket
        parts = zip(bucket.indices, tf.split(value, bucket.sizes))
        return tf.concat([p for index, p in parts if index in self.unit.bucket.indices], axis=0)

    def _put_back(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Inverse of `_taken`: the entry with new values for this step's variables."""
        before = self._planned_state[name]
        if self._is_whole(before):
            return value
        bucket = self._planned.bucket
        new = dict(zip(self.unit.bucket.indices, tf.split(value, self.unit.bucket.sizes)))
        old = zip(bucket.indices, tf.split(before, bucket.sizes))
        return tf.concat([new.get(index, part) for index, part in old], axis=0)

    def _check_shapes(self) -> None:
        """Raises ValueError if some variables take no part and the state cannot be divided."""
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
        """Raises ValueError unless as many bytes have travelled as the compressor says."""
        said = self.compressor.wire_bytes(self.unit.spec)
        if self._sent_bytes != said:
            raise ValueError(
                f"`wire_bytes` of {self.compressor} must be the bytes of its payload, for "
                f"gradients of shape {self.unit.spec.shape}: {self._sent_bytes}. "
                f"Received: wire_bytes={said}"
            )


def _nbytes(tensor: Structure) -> int:
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            "A payload's tensors must have static shapes, as all replicas send equally many bytes. "
            f"Received: {tensor}"
        )
    return math.prod(tensor.shape) * tensor.dtype.size
