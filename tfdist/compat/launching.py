"""Collective operations that TensorFlow has, but no public method calls where tfdist needs them."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.compat.multi_worker import host_launcher_of, launcher_of
from tfdist.compat.registry import READ, TENSORFLOW, touch

_LAUNCHER = "tensorflow.python.distribute.cross_device_utils:CollectiveReplicaLauncher"
_WHY: dict[str, str] = {
    "why": "the operations are public (`tf.raw_ops`). But only the launcher of a device knows "
    "which devices take part in an operation, and its number among all operations",
    "versions": TENSORFLOW,
    "instead": "a public `all_to_all` of the replica context, and sums of one value per worker",
}
_DEVICE = touch(_LAUNCHER, "_device", READ, **_WHY)
_SIZE = touch(_LAUNCHER, "_group_size", READ, **_WHY)
_KEY = touch(_LAUNCHER, "_group_key", READ, **_WHY)
_OPTIONS = touch(_LAUNCHER, "_options", READ, **_WHY)
_NEXT_KEY = touch(_LAUNCHER, "_next_instance_key", READ, "self", **_WHY)
_TOKEN = touch(_LAUNCHER, "_get_ordering_token", READ, "self", **_WHY)

# Keys of groups have 31 bits, and a sign.
_KEYS = 2**31


def all_to_all(strategy: tf.distribute.Strategy, replica_id: int, rows: tf.Tensor) -> tf.Tensor:
    """Gives row j to replica j under `MultiWorkerExtended`; in replica context.

    Args:
        strategy: the strategy.
        replica_id: this replica's number among all.
        rows: of shape `[replicas, ...]`.
    """
    return _launched(launcher_of(strategy, replica_id), tf.raw_ops.CollectiveAllToAllV2, rows)


def gather(strategy: tf.distribute.Strategy, replica_id: int, value: tf.Tensor) -> tf.Tensor:
    """The values of all replicas, of equal shapes, joined along the first axis.

    TensorFlow's replica context gathers the shapes before the values.

    Args:
        strategy: as for `all_to_all`.
        replica_id: as for `all_to_all`.
        value: of one axis or more.
    """
    return _launched(launcher_of(strategy, replica_id), tf.raw_ops.CollectiveGatherV2, value)


def gather_in_pair(
    strategy: tf.distribute.Strategy, replica_id: int, bit: int, value: tf.Tensor
) -> tf.Tensor:
    """The values of two replicas, of equal shapes, joined; the lower replica's first.

    All replicas call it, in the same order.

    Args:
        strategy: as for `all_to_all`; each replica has a process of its own.
        replica_id: as for `all_to_all`.
        bit: the other replica's number differs from this one in this bit, the lowest of which is 0.
        value: of one axis or more.
    """
    launcher = launcher_of(strategy, replica_id)
    low = replica_id & ~(1 << bit)
    key = _key_of_pair(_KEY.of(launcher), strategy.num_replicas_in_sync, low, bit)
    return _launched(launcher, tf.raw_ops.CollectiveGatherV2, value, (2, key))


def _key_of_pair(key: int, replicas: int, low: int, bit: int) -> int:
    """A key for two replicas, below zero: all other groups have keys above.

    A launcher counts its operations from the same number on as those of other strategies, so a pair
    is a group of its own in each.

    Args:
        key: of the launcher, which is another one for each strategy.
        replicas: the number of replicas.
        low: the lower replica.
        bit: in which the two differ.

    Raises:
        RuntimeError: when there are no more keys.
    """
    place = (key * replicas + low) * replicas.bit_length() + bit
    if place >= _KEYS:
        raise RuntimeError(
            "Too many strategies were made in this process for so many replicas. Make fewer, or "
            f"give them exchange='ring'. Received: group {key} of {replicas} replicas"
        )
    return -1 - place


def sum_between_workers(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
    """The sum of one value per worker under `MultiWorkerExtended`; in cross-replica context."""
    launcher = host_launcher_of(strategy.extended)
    reduce = tf.raw_ops.CollectiveReduceV2
    return _launched(launcher, reduce, value, merge_op="Add", final_op="Id")


def gather_between_workers(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
    """One value per worker, of equal shapes, joined; as `sum_between_workers`."""
    return _launched(host_launcher_of(strategy.extended), tf.raw_ops.CollectiveGatherV2, value)


def all_to_all_between_workers(strategy: tf.distribute.Strategy, rows: tf.Tensor) -> tf.Tensor:
    """Gives row j to worker j; as `sum_between_workers`."""
    return _launched(host_launcher_of(strategy.extended), tf.raw_ops.CollectiveAllToAllV2, rows)


def _launched(
    launcher: object,
    operation: Callable[..., tf.Tensor],
    value: tf.Tensor,
    group: tuple[int, int] | None = None,
    **attributes: str,
) -> tf.Tensor:
    """An operation of a group: its size and its key; None for all that the launcher knows."""
    size, key = (_SIZE.of(launcher), _KEY.of(launcher)) if group is None else group
    token, options = _TOKEN.of(launcher)(), _OPTIONS.of(launcher)
    with tf.device(_DEVICE.of(launcher)):
        return operation(
            input=value,
            group_size=size,
            group_key=key,
            instance_key=_NEXT_KEY.of(launcher)(),
            ordering_token=[] if token is None else [token],
            communication_hint=options.implementation.value.lower(),
            timeout_seconds=options.timeout_seconds or 0,
            **attributes,
        )
