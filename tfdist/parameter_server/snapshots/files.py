"""The files of a snapshot, written by TensorFlow's operations for checkpoints.

Where an operation runs decides what travels. A server that writes its own part sends nothing, but
all machines must see the same folder. The chief can write for all, and then all values pass through
the chief, a few at a time.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.devices import CHIEF

# A file has so many bytes, or one larger variable. The chief holds one file's values at a time.
_FILE = 64 << 20


class Place(NamedTuple):
    """Where a value is.

    Attributes:
        prefix: the beginning of the file names.
        name: its name in the files.
        dtype: the dtype of the value.
    """

    prefix: str
    name: str
    dtype: tf.DType


class SnapshotFiles:
    """Writes and reads values in a folder.

    Args:
        on_servers: whether each server writes and reads its own values; else the chief does.
    """

    def __init__(self, on_servers: bool):
        self._on_servers = on_servers

    def write(
        self, folder: str, values: Mapping[str, Sequence[tf.Tensor]]
    ) -> dict[str, list[Place]]:
        """Writes values. Returns their places.

        Args:
            folder: a folder, which exists.
            values: the values by the device that they are on.

        Raises:
            OSError: when the chief does not see the files that the servers have written.
        """
        places = {
            device: _places(f"{folder}/server-{number}", of_device)
            for number, (device, of_device) in enumerate(values.items())
        }
        jobs: dict[tuple[str, str], list[tuple[Place, tf.Tensor]]] = {}
        for device, of_device in values.items():
            for place, value in zip(places[device], of_device):
                jobs.setdefault((device, place.prefix), []).append((place, value))
        at_a_time = len(values) if self._on_servers else 1
        with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
            done = [
                pool.submit(_write, device if self._on_servers else CHIEF, job)
                for (device, _), job in jobs.items()
            ]
        for one in done:
            one.result()
        for prefix in {place.prefix for of_device in places.values() for place in of_device}:
            if not tf.io.gfile.exists(f"{prefix}.index"):
                raise OSError(
                    "A parameter server has written its part of a snapshot, and the chief does not "
                    "see the file. `snapshot_dir` must be one folder that the chief and all "
                    f"parameter servers share. Received: no {prefix}.index on the chief's machine"
                )
        return places

    def read(
        self, places: Mapping[str, Sequence[Place]], use: Callable[[str, int, tf.Tensor], None]
    ) -> None:
        """Reads values.

        Args:
            places: the places of the values by device.
            use: called with the device, the number of the value among those of the device, and the
                value. The present device is that of the value.
        """
        for device, of_device in places.items():
            by_prefix: dict[str, list[int]] = {}
            for number, place in enumerate(of_device):
                by_prefix.setdefault(place.prefix, []).append(number)
            for prefix, numbers in by_prefix.items():
                with tf.device(device if self._on_servers else CHIEF):
                    values = tf.raw_ops.RestoreV2(
                        prefix=prefix,
                        tensor_names=[of_device[number].name for number in numbers],
                        shape_and_slices=[""] * len(numbers),
                        dtypes=[of_device[number].dtype for number in numbers],
                    )
                with tf.device(device):
                    for number, value in zip(numbers, values):
                        use(device, number, tf.identity(value))


def _places(prefix: str, values: Sequence[tf.Tensor]) -> list[Place]:
    places: list[Place] = []
    part = size = 0
    for number, value in enumerate(values):
        size += size_of(value)
        if size > _FILE and number:
            part, size = part + 1, size_of(value)
        places.append(Place(f"{prefix}-{part}", str(number), value.dtype))
    return places


def size_of(value: tf.Tensor) -> int:
    """The bytes of a value, on the wire and in a file; those of texts are not known."""
    return (value.shape.num_elements() or 0) * max(value.dtype.size, 0)


def _write(device: str, part: Sequence[tuple[Place, tf.Tensor]]) -> None:
    with tf.device(device):
        tf.raw_ops.SaveV2(
            prefix=part[0][0].prefix,
            tensor_names=[place.name for place, _ in part],
            shape_and_slices=[""] * len(part),
            tensors=[value for _, value in part],
        )
