"""Gradients on their way to the parameter servers: compressed by the worker, restored there.

Each payload goes to the parameter server that has the variables, and nothing comes back. What was
left unsent stays on the worker for the next time. It is kept only once the gradient is used. So
work that comes to nothing, or is repeated, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.compression.base import State
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import Options
from tfdist.parameter_server import partitions
from tfdist.parameter_server.devices import CHIEF, on_its_device
from tfdist.parameter_server.gradients import Gradients, Unsent
from tfdist.parameter_server.worker.points import (
    ENCODED,
    OF_SENDING,
    PUSHED,
    Note,
    Points,
)
from tfdist.parameter_server.worker.traced import Traced
from tfdist.step import loss_scale
from tfdist.step.compression_state import first_state
from tfdist.step.compression_step import UnitStep, is_compressed, seeds
from tfdist.step.compression_units import Unit, compressor_at, plan_units, starts_of_stages
from tfdist.structures import Gradient, Structure


class CompressedPush:
    """Sends the gradients of all workers.

    Args:
        options: compression, bucket size and seed.
        optimizers: the optimizers that a step applies, in order; already built.
    """

    def __init__(self, options: Options, optimizers: Sequence[DistributedOptimizer]):
        self._seed = options.seed
        self._optimizers = list(optimizers)
        # An optimizer that a step applies twice has one state, under the number of the first time.
        order = [id(optimizer) for optimizer in optimizers]
        self._owner = {str(i): str(order.index(id(o))) for i, o in enumerate(optimizers)}
        self._units = {
            key: _units(self._optimizers[int(key)], options) for key in set(self._owner.values())
        }
        self._begin = Traced(self._first_states)
        self._send = Traced(self._compress)
        self._states: dict[int, tuple[int, Unsent]] = {}  # by sender: the worker, and its states
        self._lost: set[int] = set()  # senders whose states are lost, until they have new states
        self._before: dict[str, int] = {}

    def begin_run(self, version: int) -> None:
        """Notes how many updates each optimizer has made.

        Args:
            version: the number of updates of the strategy.
        """
        for key in self._units:
            made = int(self._optimizers[int(key)].iterations.numpy())
            self._before[key] = made - version

    def __call__(
        self,
        gradients: Gradients,
        worker: int,
        sender: int,
        version: int,
        anew: bool = False,
        note: Note | None = None,
    ) -> tuple[Gradients, Unsent, bool]:
        """Sends gradients from the worker of the present device; called in the worker's thread.

        Args:
            gradients: as in `Outcome`, on the worker.
            worker: the index of the worker.
            sender: the sender of the gradients. If another worker does the work of a sender, what
                the sender has left unsent moves to that worker.
            version: the version of the weights that the worker has read.
            anew: whether to treat what the sender has left unsent as lost.
            note: gets the times of the points in `OF_SENDING`; None if nobody wants to know.

        Returns:
            Three values: the gradients as they arrived, on the variables' parameter servers; what
            to give to `keep` when they are used; and whether what was left unsent is lost.
        """
        states = None if anew else self._states_for(worker, sender)
        if states is None:
            states, anew = self._begin(), anew or sender in self._lost
        numbers = {key: version + before for key, before in self._before.items()}
        starts = {
            key: max(start for start in starts_of_stages(self._units[key]) if start <= number)
            for key, number in numbers.items()
        }
        counts = {key: np.array(number, np.int64) for key, number in numbers.items()}
        sender_id = np.array(sender, np.int32)
        given, timed = (gradients, states, counts, starts, sender_id), note is not None
        if timed:
            self._send.prepare(*given, False)  # in the first steps, as all wait for a new function
        arrived, kept, *times = self._send(*given, timed)
        if note is not None:
            note(OF_SENDING, *times)
        return arrived, kept, anew

    def _states_for(self, worker: int, sender: int) -> Unsent | None:
        """What the sender has left unsent, on this worker or in the chief; None for nothing."""
        holder, states = self._states.get(sender, (worker, None))
        if states is None or holder == worker:
            return states
        try:
            with tf.device(CHIEF):  # workers cannot send to each other
                return tf.nest.map_structure(tf.identity, states)
        except tf.errors.OpError as error:
            if not compat.is_lost_worker(error):
                raise
            self.forget(holder)
            return None

    def keep(self, worker: int, sender: int, states: Unsent) -> None:
        """Keeps what a sender has left unsent on a worker; called when its gradients are used."""
        self._states[sender] = worker, states
        self._lost.discard(sender)

    def forget(self, worker: int) -> None:
        """Called when a worker is lost. What was left unsent on that worker is lost too."""
        for sender, (holder, states) in list(self._states.items()):
            if holder == worker:
                self._lost.add(sender)
                del self._states[sender]
                if tf.nest.flatten(states):
                    message = "tfdist: what compression had left unsent on worker %s is lost."
                    tf.get_logger().warning(message, worker)

    # --- on the worker --------------------------------------------------------------------------

    def _first_states(self) -> Unsent:
        return {
            key: [first_state(unit.compressor, unit.bucket) for unit in units]
            for key, units in self._units.items()
        }

    def _compress(
        self,
        gradients: Gradients,
        states: Unsent,
        counts: dict[str, tf.Tensor],
        starts: dict[str, int],
        sender: tf.Tensor,
        timed: bool,
    ) -> tuple:
        """Sends gradients.

        Args:
            gradients: as in `Outcome`.
            states: the states of the compressors, for each optimizer and unit.
            counts: the number of updates of each optimizer.
            starts: the number of the update with which the present stage of compression began.
            sender: the number of the sender.
            timed: whether to note times.

        Returns:
            The gradients as they arrive, the next states, and the times if they are wanted.
        """
        points = Points() if timed else None
        states, arrived = dict(states), {}
        encoded: list[Structure] = []
        for key, by_variable in gradients.items():
            owner = self._owner[key]
            by_index = {int(place): gradient for place, gradient in by_variable.items()}
            sent, kept = self._sent(
                owner, by_index, states[owner], counts[owner], starts[owner], sender, encoded
            )
            arrived[key] = {str(index): gradient for index, gradient in sent.items()}
            states[owner] = kept
        if points is None:
            return arrived, states
        points.reached(ENCODED, encoded)
        points.reached(PUSHED, arrived)
        return arrived, states, points.vector(OF_SENDING)

    def _sent(
        self,
        key: str,
        gradients: dict[int, Gradient],
        states: list[State],
        count: tf.Tensor,
        start: int,
        sender: tf.Tensor,
        encoded: list[Structure],
    ) -> tuple[dict[int, Gradient], list[State]]:
        """One optimizer's gradients as they arrive, and the next states of its units.

        What travels compressed is added to `encoded`.
        """
        optimizer = self._optimizers[int(key)]
        parts = partitions.parts_of_all(optimizer.built_for)
        arrived: dict[int, Gradient] = {}
        kept = []
        for unit, state in zip(self._units[key], states):
            dense = {
                index: tf.convert_to_tensor(gradients[index])
                for index in unit.bucket.indices
                if is_compressed(gradients.get(index), unit.compressor)
            }
            if not dense:
                kept.append(state)
                continue
            random = seeds(self._seed, unit, count, sender, replicas=1)
            compressor = compressor_at(unit.compressor, start)
            encoding = UnitStep(unit, compressor, state, dense, random)
            while encoding.payload is not None:
                encoding.receive_own()
            encoded.append(encoding.sent)
            with tf.device(_place(parts[unit.bucket.indices[0]])):
                payloads = tf.nest.map_structure(tf.identity, encoding.sent)
                restored = compressor.restore(payloads, encoding.unit.spec, random)
                arrived.update(encoding.unit.divided(restored))
            kept.append({**state, **encoding.kept()})
        if isinstance(optimizer.unwrap(), keras.optimizers.LossScaleOptimizer):
            kept = _if_finite(gradients, kept, states)
        for index, gradient in gradients.items():
            if index not in arrived:
                arrived[index] = on_its_device(parts[index], gradient)
        return arrived, kept


def _units(optimizer: DistributedOptimizer, options: Options) -> list[Unit]:
    parts = partitions.parts_of_all(optimizer.built_for)
    return plan_units(
        options.compression,
        [tf.TensorSpec(part.shape, part.dtype) for part in parts],
        [v.path for v in optimizer.built_for for _ in partitions.parts_of(v)],
        options.bucket_bytes,
        [_place(part) for part in parts],
    )


def _place(variable: keras.Variable) -> str:
    """The device of the parameter server that has the variable."""
    return variable.value.device


def _if_finite(
    gradients: dict[int, Gradient], after: list[State], before: list[State]
) -> list[State]:
    """The states `after`. If the loss has overflowed, there is no update: the states `before`."""
    finite = loss_scale.all_finite_here([*gradients.values()])
    return tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), after, before)
