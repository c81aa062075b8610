"""Help for testing distributed scripts on one machine without accelerators."""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist import environment
from tfdist.limits import MOST_DEVICES
from tfdist.validation import check_integer


def virtual_devices(count: int) -> list[str]:
    """Splits the CPU into virtual devices, so that several replicas run on a laptop.

    Call it before TensorFlow runs anything. A test suite calls it once, at the top of
    `conftest.py`. Devices may be left unused, so ask for the largest number that any test wants.

    Args:
        count: the number of virtual CPU devices, 1 to 1024.

    Returns:
        Their names, `["CPU:0", ...]`, as `tfdist.MirroredStrategy(devices=...)` takes them.

    Raises:
        ValueError: when `count` is no integer from 1 to 1024.
        RuntimeError: when TensorFlow has been initialized with another number of devices.

    Example:

    >>> import tfdist
    >>> devices = tfdist.testing.virtual_devices(2)
    >>> strategy = tfdist.MirroredStrategy(devices)
    >>> strategy.num_replicas_in_sync
    2
    """
    check_integer("count", count, 1, MOST_DEVICES)
    names = [f"CPU:{index}" for index in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    configuration = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, configuration)
    except RuntimeError as error:
        existing = len(tf.config.list_logical_devices("CPU"))
        if existing < count:
            raise RuntimeError(
                "TensorFlow is initialized already, so its devices cannot change any more: call "
                "virtual_devices before anything that makes a tensor, a model or a strategy. "
                f"Received: count={count}, and TensorFlow has {existing} CPU device(s)"
            ) from error
    return names


def virtual_devices_of_environment() -> None:
    """Makes the virtual devices that `tfdist run --devices-per-worker` asks for, if any.

    Raises:
        ValueError: when the environment variable TFDIST_DEVICES_PER_WORKER is no integer from 1 to
            1024.
        RuntimeError: when TensorFlow has been initialized with fewer devices.
    """
    text = os.environ.get(environment.DEVICES_PER_WORKER, "")
    if not text:
        return
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_DEVICES:
        raise ValueError(
            f"The environment variable {environment.DEVICES_PER_WORKER} must be an integer from 1 "
            "to "
            f"{MOST_DEVICES}. "
            f"Received: {environment.DEVICES_PER_WORKER}={text!r}"
        )
    virtual_devices(int(text))
