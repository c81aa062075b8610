"""Replicas on the devices of one machine, in one process."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from typing_extensions import Unpack

from tfdist import testing
from tfdist.arguments import check_instance, shown
from tfdist.engines.replica_context import ReplicaContextEngine
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.strategies.base import SynchronousStrategy


class MirroredStrategy(SynchronousStrategy, tf.distribute.MirroredStrategy):
    """Synchronous training on the devices of one machine.

    A drop-in for `tf.distribute.MirroredStrategy`. Keras 3's `fit`, `evaluate` and `predict` give
    the results of one device, also with clipping, accumulation, averages of the weights, uneven
    batches, masks and loss scaling.

    Args:
        devices: device names such as `["GPU:0", "GPU:1"]`. None for all GPUs or, if there are no
            GPUs, all CPU devices: one, unless `tfdist.testing.virtual_devices` made more.
        cross_device_ops: how values are reduced, a `tf.distribute.CrossDeviceOps`. None means
            TensorFlow's choice on GPUs. On CPU devices, which share their memory, None means
            `tf.distribute.ReductionToOneDevice()`.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ValueError: for unknown or repeated devices, and options out of range.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="adam", loss="mse")
    >>> x, y = np.ones((32, 4)), np.ones((32, 1))
    >>> history = model.fit(x, y, epochs=1, verbose=0, callbacks=strategy.callbacks())
    """

    @takes_options
    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        **options: Unpack[CommonOptions],
    ):
        common = Options(**options)  # type: ignore[arg-type]
        if devices is not None:
            _check_devices(devices)
        else:
            testing.virtual_devices_of_environment()
        if devices is None and not tf.config.list_logical_devices("GPU"):
            devices = [device.name for device in tf.config.list_logical_devices("CPU")]
        if cross_device_ops is None and devices and all("CPU" in d.upper() for d in devices):
            cross_device_ops = tf.distribute.ReductionToOneDevice()
        if cross_device_ops is not None:
            check_instance(
                "cross_device_ops",
                cross_device_ops,
                tf.distribute.CrossDeviceOps,
                "tf.distribute.CrossDeviceOps, such as tf.distribute.NcclAllReduce()",
            )
        super().__init__(devices, cross_device_ops)
        self._init_synchronous(common, ReplicaContextEngine())


def _check_devices(devices: Sequence[str]) -> None:
    is_list = isinstance(devices, (list, tuple)) and len(devices) > 0
    if not is_list or not all(isinstance(device, str) for device in devices):
        raise ValueError(
            '`devices` must be a list of device names such as ["CPU:0", "CPU:1"]. '
            f"Received: devices={shown(devices)}"
        )
    available = [device.name for device in tf.config.list_logical_devices()]
    chosen = []
    for name in devices:
        short = name.upper().rpartition("DEVICE:")[2].lstrip("/")
        short = short if ":" in short else f"{short}:0"
        match = [full for full in available if full.upper().endswith(f":{short}")]
        if not match:
            raise ValueError(
                f"There is no device {name!r} here. Available: "
                f"{[full.rpartition('device:')[2] for full in available]}. For CPU devices to test "
                "with, call `tfdist.testing.virtual_devices(n)` first. "
                f"Received: devices={list(devices)}"
            )
        chosen.append(match[0])
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"Each device may be named once only. Received: devices={list(devices)}")
