"""An all-to-all exchange of rows: TensorFlow has the operation, but no method that calls it."""

from __future__ import annotations

import tensorflow as tf

from tfdist.compat.multi_worker import launcher_of
from tfdist.compat.registry import READ, TENSORFLOW, touch

_LAUNCHER = "tensorflow.python.distribute.cross_device_utils:CollectiveReplicaLauncher"
_WHY: dict[str, str] = {
    "why": "the operation is public (`tf.raw_ops`). But only the launcher of the replica's device "
    "knows which devices take part in the operation, and its number among all operations",
    "versions": TENSORFLOW,
    "instead": "a public `all_to_all` of the replica context",
}
_DEVICE = touch(_LAUNCHER, "_device", READ, **_WHY)
_SIZE = touch(_LAUNCHER, "_group_size", READ, **_WHY)
_KEY = touch(_LAUNCHER, "_group_key", READ, **_WHY)
_OPTIONS = touch(_LAUNCHER, "_options", READ, **_WHY)
_NEXT_KEY = touch(_LAUNCHER, "_next_instance_key", READ, "self", **_WHY)
_TOKEN = touch(_LAUNCHER, "_get_ordering_token", READ, "self", **_WHY)


def all_to_all(strategy: tf.distribute.Strategy, replica_id: int, rows: tf.Tensor) -> tf.Tensor:
    """Gives row j to replica j under `MultiWorkerExtended`; in replica context.

    Args:
        strategy: the strategy.
        replica_id: this replica's number among all.
        rows: of shape `[replicas, ...]`.
    """
    launcher = launcher_of(strategy, replica_id)
    token, options = _TOKEN.of(launcher)(), _OPTIONS.of(launcher)
    with tf.device(_DEVICE.of(launcher)):
        return tf.raw_ops.CollectiveAllToAllV2(
            input=rows,
            group_size=_SIZE.of(launcher),
            group_key=_KEY.of(launcher),
            instance_key=_NEXT_KEY.of(launcher)(),
            ordering_token=[] if token is None else [token],
            communication_hint=options.implementation.value.lower(),
            timeout_seconds=options.timeout_seconds or 0,
        )
