"""What a callback may do, by its class and methods: decide in batches, change variables, save."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np

# Keras' callbacks that, as a rule, decide nothing and change nothing at the end of a batch.
PASSIVE = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TensorBoard,
)

# Keras' callbacks that save the model: in all processes, or in one if no other has them.
SAVING = (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint)

_IN_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_IN_TEST_BATCHES = ("on_test_batch_begin", "on_test_batch_end")
_IN_PREDICT_BATCHES = ("on_predict_batch_begin", "on_predict_batch_end")


def check_chief_saves(counts: np.ndarray) -> None:
    """Raises ValueError if another rank has more saving callbacks of a kind than rank 0.

    Args:
        counts: for each rank, the number of its callbacks of each kind in `SAVING`.
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
    """Whether `callback` has a method `name` of its own, not one from the `harmless` classes."""
    classes = (keras.callbacks.Callback, *harmless)
    own = all(getattr(type(callback), name) is not getattr(c, name) for c in classes)
    return own or name in vars(callback)


def may_save_alone(callback: keras.callbacks.Callback, phase: str) -> bool:
    """Whether `callback` may save the model in one process; Keras' own callbacks save in all.

    A callback that saves in all processes, or never, can say so: `saves_alone = False`.
    """
    if not getattr(callback, "saves_alone", True):
        return False
    return _is_of_user(callback) and defines(callback, phase)


def _is_of_user(callback: keras.callbacks.Callback) -> bool:
    """Whether a user has written what `callback` does."""
    known = type(callback).__module__.partition(".")[0] in ("keras", "tfdist")
    return not known or isinstance(callback, keras.callbacks.LambdaCallback)


def may_set_in_batches(callback: keras.callbacks.Callback, phase: str) -> bool:
    """Whether `callback` may set weights before or after a batch.

    A callback that sets none can say so: `changes_variables = False`.

    Args:
        callback: of the user, of Keras or of tfdist; the latter two set none there.
        phase: "begin" or "end", of a batch.
    """
    if not getattr(callback, "changes_variables", True) or not _is_of_user(callback):
        return False
    names = (f"on_batch_{phase}", f"on_train_batch_{phase}")
    return any(defines(callback, name, PASSIVE) for name in names)


def may_look_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether `callback` may read weights before or after a batch; only those of users do."""
    return _is_of_user(callback) and any(defines(callback, name, PASSIVE) for name in _IN_BATCHES)


def acts_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether the processes must agree after each batch on what `callback` did.

    A callback that does the same in all processes can say so: `decides_in_batches = False`.
    """
    if not getattr(callback, "decides_in_batches", True):
        return False
    if _reads_logs_in_batches(callback):
        return True
    return any(defines(callback, name, PASSIVE) for name in _IN_BATCHES)


def acts_in_test_batches(callback: keras.callbacks.Callback) -> bool:
    """The same for the batches of `evaluate`, and of validation."""
    return _acts_in(callback, _IN_TEST_BATCHES)


def acts_in_predict_batches(callback: keras.callbacks.Callback) -> bool:
    """The same for the batches of `predict`."""
    return _acts_in(callback, _IN_PREDICT_BATCHES)


def _acts_in(callback: keras.callbacks.Callback, names: Sequence[str]) -> bool:
    if not getattr(callback, "decides_in_batches", True):
        return False
    return any(defines(callback, name, PASSIVE) for name in names)


def _reads_logs_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether `callback` is Keras' own and uses or writes metrics in the middle of an epoch."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_best_only and callback.save_freq != "epoch"
    if isinstance(callback, keras.callbacks.TensorBoard):
        return callback.update_freq != "epoch"
    return False


def refuse_swaps(sharding: str | None, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises ValueError for `SwapEMAWeights` in sharded training, whose averages are parts."""
    if sharding and any(isinstance(c, keras.callbacks.SwapEMAWeights) for c in callbacks):
        raise ValueError(
            "With `sharding` each replica has parts of the averages only, so SwapEMAWeights cannot "
            "take them for weights. Leave out the callback, or `sharding`. "
            f"Received: SwapEMAWeights with sharding={sharding!r}"
        )
