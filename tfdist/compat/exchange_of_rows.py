"""The collective operation that exchanges rows, of which TensorFlow makes no method."""

from __future__ import annotations

import tensorflow as tf


def all_to_all(strategy: tf.distribute.Strategy, replica_id: int, rows: tf.Tensor) -> tf.Tensor:
    """Gives row j to replica j under `MultiWorkerExtended`; in replica context.

    Why: the operation is public (`tf.raw_ops`), but who takes part in it and its number among the
    others are known to the launcher of the replica's device alone. TensorFlow 2.20-2.21; a public
    `all_to_all` of the replica context would replace it.

    Args:
        strategy: the strategy.
        replica_id: this replica's number among all.
        rows: of shape `[replicas, ...]`.
    """
    launchers = strategy.extended._cross_device_ops._launchers
    launcher = launchers[replica_id % len(launchers)]
    token = launcher._get_ordering_token()
    with tf.device(launcher._device):
        return tf.raw_ops.CollectiveAllToAllV2(
            input=rows,
            group_size=launcher._group_size,
            group_key=launcher._group_key,
            instance_key=launcher._next_instance_key(),
            ordering_token=[] if token is None else [token],
            communication_hint=launcher._options.implementation.value.lower(),
            timeout_seconds=launcher._options.timeout_seconds or 0,
        )
