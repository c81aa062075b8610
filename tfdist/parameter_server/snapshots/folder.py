"""Where the snapshots of a `fit` are kept."""

from __future__ import annotations

import shutil
import tempfile
import uuid

import tensorflow as tf


class Folder:
    """A folder of its own for each snapshot, in one that is removed in the end.

    Args:
        given: a folder that the chief and all servers share; None for a temporary folder of the
            chief.
    """

    def __init__(self, given: str | None):
        self._given = given
        self._root: str | None = None
        self._made = 0

    def new(self, size: int) -> str:
        """A new folder for a snapshot of `size` bytes.

        Raises:
            OSError, tf.errors.OpError: when it cannot be made, or would fill the chief's disk.
        """
        if self._root is None:
            name = "tfdist-snapshots-"
            if self._given is None:
                self._root = tempfile.mkdtemp(prefix=name)  # for the own user only
            else:
                self._root = f"{self._given}/{name}{uuid.uuid4().hex}"
        folder = f"{self._root}/{self._made}"
        self._made += 1
        tf.io.gfile.makedirs(folder)
        if self._given is None:
            _check_room(folder, size)
        return folder

    def close(self) -> None:
        """Removes all."""
        if self._root is not None:
            remove(self._root)


def remove(folder: str) -> None:
    """Removes a folder, or says that it could not: training does not depend on it."""
    try:
        if tf.io.gfile.exists(folder):
            tf.io.gfile.rmtree(folder)
    except tf.errors.OpError as error:
        tf.get_logger().warning("tfdist: %s could not be removed. (%s)", folder, error.message)


def _check_room(folder: str, size: int) -> None:
    """Raises OSError if there is no room for a snapshot and the next one.

    Other programs, and perhaps the memory of this machine, share a temporary folder.
    """
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise OSError(
            f"{folder} has {free:,} bytes of free space, and two snapshots need {2 * size:,}"
        )
