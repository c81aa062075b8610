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

# The groups of two replicas: above those of `strategies/multi_worker/pairs.py`, which begin at
# 2**30 + 2**29, and below those of reducers.
_FIRST_PAIR = 2**30 + 2**29 + 2**27


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
    strategy: tf.distribute.Strategy, replica_id: int, other: int, value: tf.Tensor
) -> tf.Tensor:
    """The values of two replicas, of equal shapes, joined; the lower replica's first.

    All replicas call it, in the same order, each with the one that calls it with this one.

    Args:
        strategy: as for `all_to_all`; each replica has a process of its own.
        replica_id: as for `all_to_all`.
        other: the number of the other replica.
        value: of one axis or more.
    """
    launcher = launcher_of(strategy, replica_id)
    low, high = sorted((replica_id, other))
    pair = (2, _FIRST_PAIR + low * strategy.num_replicas_in_sync + high)
    return _launched(launcher, tf.raw_ops.CollectiveGatherV2, value, pair)


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
