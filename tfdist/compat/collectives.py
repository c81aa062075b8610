"""TensorFlow's collective operations, and iterators that use them to find the end of data."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import in_function_in_loop, traced_function
from tfdist.compat.multi_worker import MultiWorkerExtended
from tfdist.compat.one_replica import OneReplicaExtended
from tfdist.compat.registry import READ, REPLACED, TENSORFLOW, WRITTEN, touch

_INPUT = "tensorflow.python.distribute.input_lib"
_BASE: dict[str, str] = {
    "why": "all strategies number their groups of collective operations from the same base, so "
    "operations of a second strategy in a process would meet operations of the first",
    "versions": TENSORFLOW,
    "instead": "separate numbers for each strategy by default",
}
_WORKERS_BASE, _MIRRORED_BASE = (
    touch(f"tensorflow.python.distribute.{place}", "_collective_key_base", WRITTEN, **_BASE)
    for place in (
        "collective_all_reduce_strategy:CollectiveAllReduceStrategy",
        "mirrored_strategy:MirroredStrategy",
    )
)
_KEY = touch(
    "tensorflow.python.distribute.cross_device_utils:CollectiveReplicaLauncher",
    *("_use_unique_instance_key", REPLACED, "self"),
    why="with `steps_per_execution` > 1 Keras calls a function inside a loop. There TensorFlow "
    "cannot number a collective operation when it is called, and crashes",
    versions=TENSORFLOW,
    instead="collective operations that can be called in a loop",
)
_ASKING: dict[str, str] = {
    "why": "processes that know the length of the data need not ask each other in each step "
    "whether any process has data left",
    "versions": TENSORFLOW,
    "instead": "iterators that look at the cardinality of their data set",
}
_GET_NEXT = touch(
    *(f"{_INPUT}:DistributedIteratorBase", "get_next_as_optional", REPLACED, "self"), **_ASKING
)
_WITH_VALUES = touch(
    *(_INPUT, "_calculate_replicas_with_values", REPLACED),
    *("strategy", "input_workers", "optional_list"),
    **_ASKING,
)
_STRATEGY = touch(f"{_INPUT}:DistributedIteratorBase", "_strategy", READ, **_ASKING)
_ASKS = touch(
    *(f"{_INPUT}:DistributedIteratorBase", "_enable_get_next_as_optional", READ), **_ASKING
)
_APART: dict[str, str] = {
    "why": "a function that was traced with an iterator of known length must not be reused with "
    "an iterator that asks for the end of data, but for TensorFlow both have the same type",
    "versions": TENSORFLOW,
    "instead": "two types in TensorFlow itself",
}
_SPEC = f"{_INPUT}:DistributedIteratorSpec"
_SERIALIZE = touch(_SPEC, "_serialize", REPLACED, "self", **_APART)
_CHECK_TYPE = touch(_SPEC, "sanity_check_type", REPLACED, "self", "other", **_APART)
_SPEC_ASKS = touch(_SPEC, "_enable_get_next_as_optional", READ, **_APART)

_key_bases = itertools.count(1)
_local_end_of_data = threading.local()
_numbered_when_traced: weakref.WeakSet = weakref.WeakSet()


def separate_collectives(strategy: tf.distribute.Strategy) -> None:
    """Keeps the collective operations of several strategies in one process apart.

    Call it before the strategy's constructor, in the same order in every process.
    """
    are_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    (_WORKERS_BASE if are_workers else _MIRRORED_BASE).write(strategy, 1000 * next(_key_bases))


@functools.cache
def install_collectives() -> None:
    """Mends TensorFlow's collective operations for Keras' loops, once per process.

    Three things change. (1) Inside a loop, and after `number_when_traced`, an operation gets its
    number when it is traced. All processes get the same numbers, because Keras traces at its first
    step. (2) If all processes know the length of a data set, its iterator does not ask in each step
    whether any process has data left. (3) Iterators that ask and iterators that do not ask are
    different types.
    """
    _KEY.replace(_numbered_when_traced_in_loops)
    _GET_NEXT.replace(_without_asking)
    _WITH_VALUES.replace(_local_count)
    _SERIALIZE.replace(_serialized_apart)
    _CHECK_TYPE.replace(_checked_apart)


def number_when_traced() -> None:
    """Collective operations of the function that is being traced get their numbers now.

    By default they get new numbers whenever the function is called. If another thread calls it,
    processes would give out the numbers in different orders.
    """
    graph = traced_function()
    if graph is not None:
        _numbered_when_traced.add(graph)


def _numbered_when_traced_in_loops(use_unique_instance_key: Callable) -> Callable:
    @functools.wraps(use_unique_instance_key)
    def _use_unique_instance_key(self: Any) -> bool:
        graph = traced_function()
        if in_function_in_loop() or (graph is not None and graph in _numbered_when_traced):
            return False
        return use_unique_instance_key(self)

    return _use_unique_instance_key


def _without_asking(get_next_as_optional: Callable) -> Callable:
    @functools.wraps(get_next_as_optional)
    def get_next_as_optional_of_known_length(self: Any) -> Any:
        extended = _STRATEGY.of(self).extended
        ours = isinstance(extended, (MultiWorkerExtended, OneReplicaExtended))
        if not ours or _ASKS.of(self):
            return get_next_as_optional(self)
        _local_end_of_data.active = True
        try:
            return get_next_as_optional(self)
        finally:
            _local_end_of_data.active = False

    return get_next_as_optional_of_known_length


def _local_count(replicas_with_values: Callable) -> Callable:
    @functools.wraps(replicas_with_values)
    def _calculate_replicas_with_values(
        strategy: tf.distribute.Strategy, input_workers: Any, optional_list: list
    ) -> Any:
        if not getattr(_local_end_of_data, "active", False):
            return replicas_with_values(strategy, input_workers, optional_list)
        flat = [optional for of_worker in optional_list for optional in of_worker]
        return tf.add_n([tf.cast(optional.has_value(), tf.int64) for optional in flat])

    return _calculate_replicas_with_values


def _serialized_apart(serialize: Callable) -> Callable:
    @functools.wraps(serialize)
    def _serialize(self: Any) -> tuple:
        return (*serialize(self), _SPEC_ASKS.of(self))

    return _serialize


def _checked_apart(sanity_check_type: Callable) -> Callable:
    @functools.wraps(sanity_check_type)
    def check_type(self: Any, other: Any) -> None:
        sanity_check_type(self, other)
        if _SPEC_ASKS.of(self) != _SPEC_ASKS.of(other):
            raise ValueError(f"one iterator asks for the end of data: {self}, {other}")

    return check_type
