"""A lock on a parameter server for which functions may wait that can end early."""

from __future__ import annotations

import contextlib
import threading
import time

import tensorflow as tf

from tfdist.parameter_server.devices import CHIEF
from tfdist.parameter_server.own_updates.lock import Lock

_PAUSE = 0.05  # seconds until the next attempt, where a server does not answer


class QueuedLock(Lock):
    """A lock that whoever needs it takes out of a queue, and puts back.

    What is in the queue is a held `Lock`. TensorFlow lets it go when the function that has taken it
    out ends early. The chief waits for that, and puts the lock into the queue again. The chief
    alone waits for the `Lock` itself, and does not give up; all others wait for the queue.

    Args:
        name: the name of the lock on its device.
        device: the parameter server that has it.
    """

    def __init__(self, name: str, device: str):
        super().__init__(name)
        self._device = device
        self._is_open = False
        self._keeper: threading.Thread | None = None
        self._wait = tf.function(self._put_back, autograph=False)

    def _taken(self) -> tf.Tensor:
        (lock,) = tf.raw_ops.QueueDequeueV2(handle=self._queue(), component_types=[tf.variant])
        return lock

    def _let_go(self, lock: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.QueueEnqueueV2(handle=self._queue(), components=[lock])

    def _queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.variant], shapes=[[]], shared_name=f"{self._name} queue"
        )

    def _size(self) -> int:
        with tf.device(self._device):
            return int(tf.raw_ops.QueueSizeV2(handle=self._queue()).numpy())

    # --- in the chief ---------------------------------------------------------------------------

    def open(self) -> None:
        """Called before workers begin: waits until the lock can be taken."""
        self._is_open = True
        if self._keeper is None or not self._keeper.is_alive():
            self._keeper = threading.Thread(target=self._keep, daemon=True)
            self._keeper.start()
        while not self._size():
            time.sleep(0.001)

    def close(self) -> None:
        """Called when workers have ended: ends the thread that puts the lock back."""
        self._is_open = False
        if self._keeper is None or not self._keeper.is_alive():
            return
        # If the server is lost, so is the lock, and the thread notices that by itself.
        with contextlib.suppress(tf.errors.OpError):
            if self._size():
                with tf.device(self._device):
                    self._taken()  # and nobody has it then, so the thread gets it
                self._keeper.join()

    def _keep(self) -> None:
        while True:
            try:
                self._wait()
            except tf.errors.OpError:  # others say that the server is lost; it may come back
                time.sleep(_PAUSE)
                self._wait = tf.function(self._put_back, autograph=False)
            if not self._is_open:
                return

    def _put_back(self) -> tf.Tensor:
        # As a whole, this function runs in the chief. If it ran on the server, what the chief sends
        # there meanwhile would wait for it.
        with tf.device(self._device):
            put = self._let_go(super()._taken())
        with tf.device(CHIEF), tf.control_dependencies([put]):
            return tf.constant(True)
