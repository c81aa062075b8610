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
        self._can_be_had = threading.Event()
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
        """Called before workers begin: waits until the lock can be had.

        What the chief sends to a server arrives in order. Whoever waited for the lock earlier would
        keep the thread from putting it into the queue.
        """
        can_be_had = self._start()
        while self.error is None and not can_be_had.is_set():
            if self._size():  # raises if the server is lost
                break
            time.sleep(0.001)
        if self.error is not None:
            raise self.error

    def _start(self) -> threading.Event:
        with self._guard:
            self._is_open = True
            if self._thread is None:
                self._can_be_had = threading.Event()
                arguments = [self._can_be_had]
                self._thread = threading.Thread(target=self._keep, args=arguments, daemon=True)
                self._thread.start()
            return self._can_be_had

    @contextlib.contextmanager
    def held_by_chief(self, device: str) -> Iterator[None]:
        """As in `Lock`, also after `close`."""
        self.open()
        with super().held_by_chief(device):
            yield

    def close(self) -> None:
        """Called when no function uses the lock: ends the thread."""
        thread = self._thread
        if thread is None or not self._can_be_had.is_set():
            self._is_open = False
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

    def _keep(self, can_be_had: threading.Event) -> None:
        """Waits until the lock is let go, and puts it back, again and again."""
        error: Exception | None = None
        while self._goes_on():
            try:
                if error is not None:
                    time.sleep(_PAUSE)
                if self._wait is None:
                    # The wait that has ended may have let the lock go though somebody has it;
                    # unless the server was lost, and another one is in its place.
                    if self._is_known() and error is not None:
                        self.error = error
                        continue
                    self._wait = tf.function(self._put_back, autograph=False)
                if not can_be_had.is_set() and self._size():
                    can_be_had.set()
                self._wait()
                can_be_had.set()
                error = None
            except tf.errors.OpError as caught:  # others say that the server is lost
                error = caught
                self._wait = None
                can_be_had.clear()
            except Exception as caught:
                self.error = caught

    def _goes_on(self) -> bool:
        with self._guard:
            is_kept = self._thread is threading.current_thread()
            if is_kept and self._is_open and self.error is None:
                return True
            if is_kept:
                self._thread = None
            return False

    def _is_known(self) -> bool:
        """Whether the server has had this lock before."""
        if self._size(tf.bool):
            return True
        with tf.device(self._device):
            known = tf.constant(True)
            tf.raw_ops.QueueEnqueueV2(handle=self._queue(tf.bool), components=[known])
        return False

    def _put_back(self) -> tf.Tensor:
        # As a whole, this function runs in the chief. If it ran on the server, what the chief sends
        # there meanwhile would wait for it.
        with tf.device(self._device):
            put = self._let_go(super()._taken())
        with tf.device(CHIEF), tf.control_dependencies([put]):
            return tf.constant(True)
