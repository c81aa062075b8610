"""The checkpoints in a folder that another process writes to: whole ones only, the newest last."""

from __future__ import annotations

import dataclasses
import os
import re

import tensorflow as tf

_KERAS = (".weights.h5", ".keras")


@dataclasses.dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint as it was at one moment; one that is written again differs from the one before.

    Attributes:
        changed: when it was written, in nanoseconds.
        numbers: the numbers in its name, which order what was written at the same time.
        size: bytes of the file.
        path: of the file; of a `tf.train.Checkpoint`, the prefix of its files.
        inode: the file system's number of the file; 0 where the folder is an object store.
    """

    changed: int
    numbers: tuple[int, ...]
    size: int
    path: str
    inode: int = 0

    @property
    def is_keras(self) -> bool:
        """Whether Keras wrote it, not a `tf.train.Checkpoint`."""
        return self.path.endswith(_KERAS)

    @property
    def number(self) -> int | None:
        """N, if the name is one of `...-N`, `...-N.weights.h5` and `...-N.keras`."""
        found = re.search(r"-(\d+)(\.weights\.h5|\.keras)?$", self.path)
        return int(found[1]) if found else None

    def is_current(self) -> bool:
        """Whether the file is still the one that was found."""
        return _found(self.path) == self


def checkpoints(folder: str) -> list[Checkpoint]:
    """The checkpoints in `folder`, in the order in which they were written.

    These are the ones that the file `checkpoint` of a `tf.train.Checkpoint` or its manager names,
    and files `*.weights.h5` and `*.keras`. Names that begin with a dot are files that are still
    being written.

    Args:
        folder: the folder, which need not exist yet.
    """
    state = tf.train.get_checkpoint_state(folder)
    paths = list(state.all_model_checkpoint_paths) if state is not None else []
    try:
        names = tf.io.gfile.listdir(folder)
    except tf.errors.NotFoundError:
        names = []
    own = [name for name in names if name.endswith(_KERAS) and not name.startswith(".")]
    paths += [os.path.join(folder, name) for name in own]
    return sorted(one for one in map(_found, paths) if one is not None)


def _found(path: str) -> Checkpoint | None:
    """What is at `path` now; None if it is gone."""
    file = path if path.endswith(_KERAS) else f"{path}.index"
    numbers = tuple(int(number) for number in re.findall(r"\d+", os.path.basename(path)))
    try:
        if "://" in file:
            remote = tf.io.gfile.stat(file)
            return Checkpoint(remote.mtime_nsec, numbers, remote.length, path)
        local = os.stat(file)  # TensorFlow's has whole seconds only
    except (tf.errors.NotFoundError, FileNotFoundError):
        return None
    return Checkpoint(local.st_mtime_ns, numbers, local.st_size, path, local.st_ino)
