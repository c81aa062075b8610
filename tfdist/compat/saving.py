"""Keras' saving and loading."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.saving.keras_saveable import KerasSaveable

from tfdist.compat.registry import KERAS, READ, REPLACED, TENSORFLOW, overrides, touch


@overrides(
    "_obj_type",
    why="what replicas keep is an attribute of the optimizer, and is saved with the optimizer",
    versions=KERAS,
    instead="a public base class for objects that are saved",
)
class SaveableState(KerasSaveable):
    """Extra state, held as an attribute of an optimizer, that Keras' saving finds there."""

    def _obj_type(self) -> str:
        return "Optimizer"


_WRITE: dict[str, str] = {
    "why": "only one of several processes may write, and only whole files, even in scripts and "
    "callbacks that do not know about processes",
    "versions": KERAS,
    "instead": "a public hook of the saving library",
}
_WRITES = [
    touch(owner, name, REPLACED, first, "filepath", **_WRITE)
    for owner, name, first in (
        ("keras.src.saving.saving_lib", "save_model", "model"),
        ("keras.src.saving.saving_lib", "save_weights_only", "model"),
        ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5", "model"),
        ("keras.src.models.model:Model", "export", "self"),
    )
]
_WRITE_STATE = touch(
    *("keras.src.legacy.saving.legacy_h5_format", "save_optimizer_weights_to_hdf5_group", REPLACED),
    why="a file .h5 has an optimizer's variables as they are, but each replica may have parts of "
    "them only. Other files have what the optimizer's `save_own_variables` writes",
    versions=KERAS,
    instead="files .h5 with what `save_own_variables` writes",
)
_TREES = [
    touch(
        *("keras.src.models.model:Model", name, REPLACED, "self"),
        why="a tree of states has an optimizer's variables as they are, but each replica may have "
        "parts of them only",
        versions=KERAS,
        instead="trees with what the optimizer's `save_own_variables` writes",
    )
    for name in ("get_state_tree", "set_state_tree")
]
_LOAD = touch(
    *("keras.src.models.model:Model", "load_weights", REPLACED, "self", "filepath"),
    why="a file may be visible to only one of the processes",
    versions=KERAS,
    instead="a public hook of the saving library",
)


def hook_saving(
    hook: Callable[[keras.Model, Any, Callable[[Any], Any]], Any],
    check_for_h5: Callable[[keras.optimizers.Optimizer], None] | None = None,
    check_tree: Callable[[keras.Model, str], None] | None = None,
) -> None:
    """Makes Keras call `hook(model, path, write)` instead of writing a model or weights to `path`.

    `write(path)` is Keras' own function. `path` is None for weights in several files
    (`max_shard_size`). Before Keras writes the variables of an optimizer to a file .h5 as they are,
    it calls `check_for_h5(optimizer)`. Before a model's `get_state_tree` and `set_state_tree` it
    calls `check_tree(model, name)`.
    """

    def make(name: str, original: Callable) -> Callable:
        @functools.wraps(original)
        def save(model: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("max_shard_size") or (name == "save_weights_only" and args and args[0]):
                return hook(model, None, lambda _: original(model, filepath, *args, **kwargs))
            return hook(model, filepath, lambda path: original(model, path, *args, **kwargs))

        return save

    for write in _WRITES:
        write.replace(functools.partial(make, write.name))
    if check_for_h5 is not None:
        _WRITE_STATE.replace(functools.partial(_checked, check_for_h5))
    if check_tree is not None:
        for tree in _TREES:
            tree.replace(functools.partial(_of_tree, check_tree, tree.name))


def _checked(check: Callable[[keras.optimizers.Optimizer], None], original: Callable) -> Callable:
    @functools.wraps(original)
    def save_optimizer_weights_to_hdf5_group(
        group: object, optimizer: keras.optimizers.Optimizer
    ) -> None:
        check(optimizer)
        original(group, optimizer)

    return save_optimizer_weights_to_hdf5_group


def _of_tree(check: Callable[[keras.Model, str], None], name: str, original: Callable) -> Callable:
    @functools.wraps(original)
    def of_tree(self: keras.Model, *args: object, **kwargs: object) -> Any:
        check(self, name)
        return original(self, *args, **kwargs)

    return of_tree


def hook_load_weights(hook: Callable[[keras.Model, Callable[[], None]], None]) -> None:
    """Makes `model.load_weights(...)` call `hook(model, load)`; `load()` is Keras' own."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def load_weights(self: keras.Model, *args: Any, **kwargs: Any) -> None:
            hook(self, functools.partial(original, self, *args, **kwargs))

        return load_weights

    _LOAD.replace(make)


_CHECKPOINT = "tensorflow.python.checkpoint.checkpoint"
_RESTORED: dict[str, str] = {
    "why": "a model that is evaluated must have all of its weights from the checkpoint. The public "
    "checks also ask for metrics and the optimizer's state, which training need not have",
    "versions": TENSORFLOW,
    "instead": "a public list of the objects that were restored",
}
_COORDINATOR = touch(f"{_CHECKPOINT}:CheckpointLoadStatus", "_checkpoint", READ, **_RESTORED)
_OBJECTS = touch(
    f"{_CHECKPOINT}:_CheckpointRestoreCoordinator", "object_by_proto_id", READ, **_RESTORED
)


def not_restored(status: object, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """The variables that `tf.train.Checkpoint.restore`, which returned `status`, did not find."""
    restored = {id(found) for found in _OBJECTS.of(_COORDINATOR.of(status)).values()}
    return [variable for variable in variables if id(variable) not in restored]
