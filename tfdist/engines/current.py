"""The engine of the strategy that runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tfdist.engines.contract import Engine, Value
from tfdist.engines.hosts import Hosts
from tfdist.engines.processes import OneProcess
from tfdist.engines.replica_context import ReplicaContextEngine


class AloneEngine(Engine):
    """One replica that has no others: each operation returns what the replica has."""

    replicas = 1
    largest_message = None

    def __init__(self) -> None:
        self.processes = OneProcess()

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The values."""
        return list(values)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor."""
        return tensor

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor."""
        return tensor

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows."""
        return rows

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """The vector."""
        return vector


_OF_OTHERS = ReplicaContextEngine()
_ALONE = AloneEngine()
_thread = threading.local()


class ExchangeRefusedError(RuntimeError):
    """A replica needs the others where it must compute alone."""


@contextlib.contextmanager
def _with(name: str, value: object) -> Iterator[None]:
    """In this context and thread, an attribute of `_thread` has this value."""
    before = getattr(_thread, name, None)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, before)


def refusing_exchanges() -> AbstractContextManager[None]:
    """In this context and thread, `current` raises ExchangeRefusedError."""
    return _with("refuses", True)


def current() -> Engine:
    """The engine of the current strategy; the replica context if the strategy is not tfdist's."""
    if getattr(_thread, "refuses", False):
        raise ExchangeRefusedError("the step needs an engine")
    if getattr(_thread, "is_alone", False):
        return _ALONE
    hosts = getattr(_thread, "hosts", None)
    if hosts is not None:
        return hosts.between
    return getattr(tf.distribute.get_strategy(), "engine", _OF_OTHERS)


def alone(is_alone: bool = True) -> AbstractContextManager[None]:
    """In this thread, the current engine is that of a replica that has no others.

    Args:
        is_alone: False to change nothing.
    """
    return _with("is_alone", getattr(_thread, "is_alone", False) or is_alone)


def between(hosts: Hosts | None) -> AbstractContextManager[None]:
    """In this thread, the current engine is the one between hosts.

    Args:
        hosts: the replicas by host; None to change nothing.
    """
    return _with("hosts", hosts or getattr(_thread, "hosts", None))


def own_number() -> tf.Tensor:
    """The number of this replica, or between hosts of this host; int32; in replica context."""
    hosts = getattr(_thread, "hosts", None)
    if hosts is not None:
        return tf.constant(hosts.host_id)
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)
