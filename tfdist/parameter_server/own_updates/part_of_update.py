"""The part of an update that one of several parameter servers makes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.flat import FlatVariables
from tfdist.parameter_server.gradients import Gradients
from tfdist.parameter_server.own_updates.function_calls import FunctionCalls
from tfdist.parameter_server.own_updates.lock import Lock
from tfdist.parameter_server.own_updates.needs_chief import NeedsChief
from tfdist.parameter_server.own_updates.server_scope import ServerScope
from tfdist.parameter_server.packing import Sent, unpack, unpack_there
from tfdist.parameter_server.together import applying, vectors_of
from tfdist.parameter_server.worker.functional_step import FunctionalStep

# The numbers of an update.
FACTOR, STALENESS, KIND, KEY, FIRST_SHARED = range(5)


class PartOfUpdate:
    """Keeps gradients on a server until it updates the variables that the server has.

    Args:
        device: the server.
        name: under this name, the server keeps gradients by the number of the update.
        marks: two int64 variables on the server: the last update whose part was begun, and the last
            one whose part was made.
        strategy: the strategy.
        step: the model's step.
        sent: gradients and changes that are on the server.
        calls: makes the functions that run there.
        flat: flat variables that are in use.
    """

    def __init__(
        self,
        device: str,
        name: str,
        marks: Sequence[tf.Variable],
        strategy: ChiefStrategy,
        step: FunctionalStep,
        sent: Sent,
        calls: FunctionCalls,
        flat: FlatVariables,
    ):
        self._device = device
        self._name = name
        self._begun, self._made = marks
        self._strategy = strategy
        self._step = step
        self._sent = sent
        self._calls = calls
        self._flat = flat
        self._types = [tensor.dtype for tensor in sent.tensors]
        self._shapes = [tensor.shape for tensor in sent.tensors]
        self._change = calls.apart(self._changed)
        self._make = calls.apart(self._made_once)
        # The loss of a worker ends a function in the middle, while the chief already looks.
        self._lock = Lock(f"{name} {device}")
        self._once = tf.function(
            self._unless_made, autograph=False, experimental_attributes={"_noinline": True}
        )

    def keep(self, key: tf.Tensor) -> list[tf.Operation]:
        """Keeps the gradients for `apply`; in a worker's function.

        Args:
            key: int64 scalar, the number of the update.
        """
        with tf.device(self._device):
            if not self._types:
                return []
            kept = tf.raw_ops.MapStage(
                key=tf.identity(key),
                indices=tf.range(len(self._types)),
                values=self._sent.tensors,
                dtypes=self._types,
                shared_name=self._name,
            )
        return [kept]

    def clear(self) -> None:
        """Forgets what was kept for updates that were never made."""
        if self._types:
            with tf.device(self._device):
                tf.raw_ops.MapClear(dtypes=self._types, shared_name=self._name)

    def apply(self, key: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Makes the part with the gradients that were kept, unless it is made already.

        Args:
            key: as for `keep`.
            numbers: float64 vector: the factor of the learning rates, the staleness, the kind and
                the number of the update; then the values of `shared_numbers`.
        """
        with tf.device(self._device):
            return self._once(tf.identity(key), tf.identity(numbers))

    def _unless_made(self, key: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        with self._lock.held() as held:
            is_made = tf.equal(self._made.read_value(), key)
            done = tf.cond(is_made, lambda: key, lambda: self._make(key, numbers))
            held.until = [done]
        return held.after(done)

    def _made_once(self, key: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        message = "A parameter server has made a part of an update. Start again from a backup."
        is_new = tf.debugging.Assert(tf.not_equal(self._begun.read_value(), key), [message])
        tensors = []
        with tf.control_dependencies([is_new]):
            if self._types:
                tensors = tf.raw_ops.MapUnstage(
                    key=key,
                    indices=tf.range(len(self._types)),
                    dtypes=self._types,
                    shared_name=self._name,
                )
        tensors = [tf.ensure_shape(t, shape) for t, shape in zip(tensors, self._shapes)]
        with tf.control_dependencies([is_new, *tensors]):
            begun = self._begun.assign(key, read_value=False)
        with tf.control_dependencies([begun]):
            changed = self._change(tensors, numbers)
        with tf.control_dependencies([changed]):
            made = self._made.assign(key, read_value=False)
        with tf.control_dependencies([made]):
            return tf.identity(key)

    def _changed(self, tensors: Sequence[tf.Tensor], numbers: tf.Tensor) -> tf.Tensor:
        gradients, changes, assigned = self._sent.unpacked(tensors)
        shared = shared_numbers(self._step)
        of_shared = tf.unstack(numbers[FIRST_SHARED:][: len(shared)])
        values = {id(v): tf.cast(number, v.dtype) for v, number in zip(shared, of_shared)}
        update = functools.partial(self._update, gradients, numbers[FACTOR], values)
        # An optimizer is applied in another thread than the one in which it updates variables.
        with ServerScope(self._device, values):
            self._strategy.run(update)
        changed = self._step.changed
        for key, change in unpack_there(changes, changed).items():
            changed[int(key)].value.assign_add(change)
        for key, value in unpack_there(assigned, changed).items():
            changed[int(key)].value.assign(value)
        self._check_captures()
        return tf.constant(True)

    def _check_captures(self) -> None:
        """Raises `NeedsChief` if what was traced uses variables on other servers."""
        for operation in tf.compat.v1.get_default_graph().get_operations():
            is_resource = (
                operation.type == "Placeholder" and operation.outputs[0].dtype == tf.resource
            )
            device = compat.captured_from(operation.outputs[0]) if is_resource else ""
            if device not in ("", self._device):
                raise NeedsChief("an update needs a variable that is on another parameter server")

    def _update(
        self, gradients: Gradients, factor: tf.Tensor, values: dict[int, tf.Tensor]
    ) -> None:
        steps = []
        vectors: dict[tuple[int, ...], tf.Tensor] = {}
        for key, packed in gradients.items():
            parts = self._step.parts_for(key)
            by_place = {int(place): value for place, value in unpack(packed, parts).items()}
            vectors |= vectors_of(packed, by_place)
            here = [parts[place] for place in by_place]
            steps.append((self._step.optimizers[int(key)], [*by_place.values()], here))
        scope = ServerScope(self._device, values)
        with self._calls.one_by_one(), scope, applying(factor, self._flat, vectors):
            for optimizer, of_variables, here in steps:
                if here:
                    optimizer.apply_collected(of_variables, here)
                else:
                    for counter in optimizer.counters():
                        counter.assign_add(1)


def shared_numbers(step: FunctionalStep) -> list[keras.Variable]:
    """The counts of updates and the learning rates, which every server needs."""
    optimizers = {id(o): o.unwrap() for o in step.optimizers}.values()
    found = [number for o in optimizers for number in (o.iterations, compat.rate_of(o))]
    return [number for number in found if isinstance(number, keras.Variable)]
