"""A lock on a parameter server, which functions of several workers take in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdist.structures import Structure


class Lock:
    """A lock that operations of a graph hold.

    When a function ends early, such as after the loss of a worker, TensorFlow lets go its lock. But
    if a function ends early while it waits for a lock, TensorFlow lets go the lock that another one
    holds. Where that can happen, `QueuedLock` is needed.

    Args:
        name: the name of the lock on its device.
    """

    def __init__(self, name: str):
        self._name = name

    @contextlib.contextmanager
    def held(
        self, after: Structure = (), unless: Callable[[], tf.Tensor] | None = None
    ) -> Iterator[Held]:
        """In this context, operations are made that run while the lock is held.

        Args:
            after: what must be there before the lock is taken: nobody else should wait for it.
            unless: called while the lock is held: whether to let it go at once and try again.
        """
        with tf.control_dependencies(operations(after)):
            lock = self._taken() if unless is None else self._taken_unless(unless)
        held = Held()
        with tf.control_dependencies([lock]):
            yield held
        with tf.control_dependencies([lock, *operations(held.until)]):
            held.released = self._let_go(lock)

    @contextlib.contextmanager
    def held_by_chief(self, device: str) -> Iterator[None]:
        """In this context, the chief holds the lock.

        Args:
            device: the device of the lock.
        """
        lock = None
        try:
            with tf.device(device):
                lock = self._taken()
            yield
        finally:
            if lock is not None:
                with tf.device(device):
                    self._let_go(lock)
            del lock  # else it would not be let go with the function that takes it next

    def _taken(self) -> tf.Tensor:
        mutex = tf.raw_ops.MutexV2(shared_name=self._name, container="")
        return tf.raw_ops.MutexLock(mutex=mutex)

    def _let_go(self, lock: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def _taken_unless(self, unless: Callable[[], tf.Tensor]) -> tf.Tensor:
        def is_in_vain(lock: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([lock]):
                return unless()

        def again(lock: tf.Tensor) -> list[tf.Tensor]:
            with tf.control_dependencies([self._let_go(lock)]):
                return [self._taken()]

        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def taken() -> tf.Tensor:
            (lock,) = tf.while_loop(is_in_vain, again, [self._taken()], parallel_iterations=1)
            return lock

        return taken()


class Held:
    """A lock that is held.

    Attributes:
        until: what must be there before others may take the lock.
        released: the operation that lets it go; None inside of the context.
    """

    def __init__(self) -> None:
        self.until: Structure = ()
        self.released: tf.Operation | None = None

    def after(self, value: Structure) -> Structure:
        """`value` once the lock has been let go."""
        with tf.control_dependencies([self.released]):
            return tf.nest.map_structure(tf.identity, value)


def operations(value: Structure) -> Sequence[tf.Tensor | tf.Operation]:
    """The tensors and operations in a structure."""
    return [leaf for leaf in tf.nest.flatten(value, expand_composites=True) if leaf is not None]
