"""Horovod in groups that change: it is shut down and initialized again in the same process."""

from __future__ import annotations

import contextlib
import os
import socket
from types import ModuleType

import tensorflow as tf

from tfdist.cluster import sockets
from tfdist.elastic.formation import Formation
from tfdist.strategies.horovod.losses import is_loss


class NotFormedError(ConnectionError):
    """Horovod cannot begin, for example as another rank has died."""


class HorovodConnection:
    """Connects the ranks of an elastic job by Horovod.

    Only the neighbours of a dead rank learn of its death; the others would wait for Gloo's timeout.
    So `interrupt` closes the connections that `hvd.init` has opened.

    Args:
        hvd: the module `horovod.tensorflow`.
    """

    address = ""

    def __init__(self, hvd: ModuleType):
        self._hvd = hvd
        self._opened: set[str] = set()

    def form(self, formation: Formation, own: int) -> None:
        """Initializes Horovod for a group.

        Raises:
            NotFormedError: when Horovod cannot begin; what it has printed says why.
        """
        os.environ.update(formation.variables)
        before = set(sockets.opened().values())
        try:
            self._hvd.init()
        except ValueError as error:
            raise NotFormedError(str(error)) from error
        self._opened = set(sockets.opened().values()) - before

    def leave(self) -> None:
        """Shuts Horovod down."""
        self.interrupt()
        self._hvd.shutdown()

    def interrupt(self) -> None:
        """Closes the connections to all other ranks."""
        for descriptor, name in sockets.opened().items():
            if name in self._opened:
                with contextlib.suppress(OSError), sockets.borrowed(descriptor) as one:
                    one.shutdown(socket.SHUT_RDWR)

    def is_loss(self, error: Exception) -> bool:
        """Whether Horovod failed, in an operation or before; it does not say more."""
        return isinstance(error, NotFormedError) or is_loss(error)

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks."""
        return self._hvd.allreduce(value, op=self._hvd.Sum) if self._hvd.size() > 1 else value
