"""Summaries for TensorBoard: a folder that cannot be written is refused before training."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.arguments import check_path

_ERRORS = (tf.errors.OpError, OSError)


class Summaries:
    """Writes summaries to a folder within a `log_dir`.

    The writer is made when training begins: a callback can be copied before.

    Args:
        log_dir: a folder for TensorBoard; None for none.
        folder: the name of the folder within it.

    Raises:
        TypeError: for a `log_dir` that is no path.
    """

    def __init__(self, log_dir: str | os.PathLike | None, folder: str) -> None:
        if log_dir is not None:
            check_path("log_dir", log_dir)
        self._log_dir = log_dir
        self._folder = folder
        self._writer: Any = None

    def problem(self) -> ValueError | None:
        """Why nothing can be written; None if it can, or if nothing is wanted."""
        if self._log_dir is None:
            return None
        try:
            self._existing_writer(self._log_dir)
        except _ERRORS as error:
            return ValueError(
                "The folder for TensorBoard must be one that can be made and written: "
                f"{_why(error)}. Received: log_dir={os.fspath(self._log_dir)!r}"
            )
        return None

    def write(self, act: Callable[[], None]) -> None:
        """Calls `act`, which writes with `tf.summary`, if there is a folder.

        A full disk is warned of: training has cost more than the summaries.
        """
        if self._log_dir is None:
            return
        try:
            writer = self._existing_writer(self._log_dir)
            with writer.as_default():
                act()
            writer.flush()
        except _ERRORS as error:
            tf.get_logger().warning(
                "tfdist: summaries could not be written to %s: %s", self._log_dir, _why(error)
            )

    def _existing_writer(self, log_dir: str | os.PathLike) -> Any:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(os.path.join(log_dir, self._folder))
        return self._writer


def _why(error: Exception) -> str:
    """What has failed, without the names of TensorFlow's operations around it."""
    text = " ".join(str(getattr(error, "message", error)).split())
    return re.sub(r"^\{\{.*?\}\} | \[Op:.*$", "", text)
