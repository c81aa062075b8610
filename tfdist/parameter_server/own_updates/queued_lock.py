"""A lock on a parameter server for which functions may wait that can end early."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist.parameter_server.devices import CHIEF
from tfdist.parameter_server.own_updates.lock import Lock

_PAUSE = 0.05  # seconds, until a server that was lost is asked again


class QueuedLock(Lock):
    """A lock that whoever needs it takes out of a queue, and puts back.

    What is in the queue is a held `Lock`. TensorFlow lets it go when the function that has taken it
    out ends early. A thread of the chief waits for that, and puts the lock into the queue again.
    This thread alone waits for the `Lock` itself, and does not give up; all others wait for the
    queue.

    Args:
        name: what the name of the lock begins with.
        device: the parameter server that has it.

    Attributes:
        error: what has ended the thread; then the lock must be renewed.
    """

    def __init__(self, name: str, device: str):
        super().__init__(name)
        self._begins_with = name
        self._device = device
        self._guard = threading.Lock()
        self.renew()

    def renew(self) -> None:
        """Makes it another lock. Functions must be traced anew."""
        self._name = f"{self._begins_with} {uuid.uuid4().hex}"
        self._is_open = False
        self._thread: threading.Thread | None = None
        self._wait: Callable | None = None
        self.error: Exception | None = None

    def _taken(self) -> tf.Tensor:
        (lock,) = tf.raw_ops.QueueDequeueV2(handle=self._queue(), component_types=[tf.variant])
        return lock

    def _let_go(self, lock: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.QueueEnqueueV2(handle=self._queue(), components=[lock])

    def _queue(self, dtype: tf.DType = tf.variant) -> tf.Tensor:
        name = f"{self._name} queue of {dtype.name}"
        return tf.raw_ops.FIFOQueueV2(component_types=[dtype], shapes=[[]], shared_name=name)

    # --- in the chief ---------------------------------------------------------------------------

    def open(self) -> None:
        """Called before workers begin: waits until the lock is in the queue."""
        self._start()
        while not self._size():
            if self.error is not None:
                raise self.error
            time.sleep(0.001)

    def _start(self) -> None:
        with self._guard:
            self._is_open = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def held_by_chief(self, device: str) -> Iterator[None]:
        """As in `Lock`, also after `close`."""
        if self.error is not None:
            raise self.error
        self._start()
        with super().held_by_chief(device):
            yield

    def close(self) -> None:
        """Called when no function uses the lock: ends the thread."""
        thread = self._thread
        if thread is None:
            return
        lock = None
        # If the server is lost, so is the lock.
        with contextlib.suppress(tf.errors.OpError), tf.device(self._device):
            lock = self._taken()
        self._is_open = False
        if lock is not None:
            del lock  # so the thread gets it
            thread.join()

    def _size(self, dtype: tf.DType = tf.variant) -> int:
        with tf.device(self._device):
            return int(tf.raw_ops.QueueSizeV2(handle=self._queue(dtype)).numpy())

    # --- in the thread --------------------------------------------------------------------------

    def _keep(self) -> None:
        error: Exception | None = None
        while self._goes_on():
            try:
                if error is not None:
                    time.sleep(_PAUSE)
                self._keep_once(error)
                error = None
            except tf.errors.OpError as caught:  # others say that the server is lost
                error = caught
                self._wait = None
            except Exception as caught:
                self.error = caught

    def _goes_on(self) -> bool:
        with self._guard:
            if self._is_open and self.error is None:
                return True
            self._thread = None
            return False

    def _keep_once(self, error: Exception | None) -> None:
        """Waits until the lock is let go, and puts it back.

        Args:
            error: why waiting for it has ended before. That may have let it go though somebody has
                it; unless the server was lost, and another one is in its place.
        """
        if not self._size(tf.bool):
            with tf.device(self._device):
                known = tf.constant(True)
                tf.raw_ops.QueueEnqueueV2(handle=self._queue(tf.bool), components=[known])
        elif error is not None:
            self.error = error
            return
        if self._wait is None:
            self._wait = tf.function(self._put_back, autograph=False)
        self._wait()

    def _put_back(self) -> tf.Tensor:
        # As a whole, this function runs in the chief. If it ran on the server, what the chief sends
        # there meanwhile would wait for it.
        with tf.device(self._device):
            put = self._let_go(super()._taken())
        with tf.device(CHIEF), tf.control_dependencies([put]):
            return tf.constant(True)
