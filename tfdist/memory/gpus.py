"""The free memory of GPUs, as far as TensorFlow says it in public."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def free_of_gpus(devices: Sequence[str]) -> int | None:
    """The bytes that are free on the GPU that has the fewest.

    TensorFlow says what is in use. How much a GPU has it says only where the user has set a limit,
    by `tf.config.set_logical_device_configuration`.

    Args:
        devices: the names of GPUs of this process.

    Returns:
        None if one of them has no such limit.
    """
    limits = [
        configuration.memory_limit
        for gpu in tf.config.get_visible_devices("GPU")
        for configuration in tf.config.get_logical_device_configuration(gpu)
        or [tf.config.LogicalDeviceConfiguration()]
    ]
    free = []
    for device in devices:
        number = tf.DeviceSpec.from_string(device).device_index
        if limits[number] is None:
            return None
        used = tf.config.experimental.get_memory_info(f"GPU:{number}")["current"]
        free.append(max(0, limits[number] * 2**20 - used))
    return min(free)
