"""What a callback may do, by its class and methods: decide in batches, change variables, save."""

from __future__ import annotations

import keras
import numpy as np

# Keras' callbacks that neither decide nor change anything at the end of a batch, as a rule.
PASSIVE = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TensorBoard,
)

# Those that save the model, in all processes or, where only one has them, in this one.
SAVING = (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint)


def check_chief_saves(counts: np.ndarray) -> None:
    """Raises ValueError where another rank has a callback that saves, and rank 0 does not.

    Args:
        counts: by rank, how many it has of each kind of `SAVING`.
    """
    for kind, by_rank in zip(SAVING, counts.T.tolist()):
        if max(by_rank) > by_rank[0]:
            raise ValueError(
                f"Only rank 0 writes files, so a {kind.__name__} that another rank alone has would "
                "save nothing. Give it to rank 0 too, or to all ranks. "
                f"Received: {kind.__name__} callbacks by rank: {by_rank}"
            )


def defines(
    callback: keras.callbacks.Callback,
    name: str,
    harmless: tuple[type[keras.callbacks.Callback], ...] = (),
) -> bool:
    """Whether `callback` has a method `name` of its own, other than those of `harmless`."""
    classes = (keras.callbacks.Callback, *harmless)
    own = all(getattr(type(callback), name) is not getattr(c, name) for c in classes)
    return own or name in vars(callback)


def may_save_alone(callback: keras.callbacks.Callback, phase: str) -> bool:
    """Whether `callback` may save the model in one process: Keras' own save in all of them.

    One that saves in all of them, or not at all, may say so: `saves_alone = False`.
    """
    if not getattr(callback, "saves_alone", True):
        return False
    known = type(callback).__module__.partition(".")[0] in ("keras", "tfdist")
    is_lambda = isinstance(callback, keras.callbacks.LambdaCallback)
    return (is_lambda or not known) and defines(callback, phase)


def acts_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether the processes must agree after each batch on what `callback` did.

    A callback that does the same in all of them may say so: `decides_in_batches = False`.
    """
    if not getattr(callback, "decides_in_batches", True):
        return False
    if _reads_logs_in_batches(callback):
        return True
    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    return any(defines(callback, name, PASSIVE) for name in names)


def _reads_logs_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether one of Keras' callbacks decides by, or writes, metrics in the middle of an epoch."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_best_only and callback.save_freq != "epoch"
    if isinstance(callback, keras.callbacks.TensorBoard):
        return callback.update_freq != "epoch"
    return False
