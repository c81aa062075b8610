"""What ranks compare before `fit`, `evaluate` and `predict`, and what these are not given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.processes import meeting
from tfdist.tensor_parallel.gradients import check_optimizer, of_optimizer
from tfdist.tensor_parallel.mesh import Mesh
from tfdist.tensor_parallel.parts import InParts
from tfdist.tensor_parallel.strategy import MeshStrategy

_SAVE = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
_COMPARED = (
    *("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "steps", "shuffle"),
    *("validation_split", "validation_steps", "validation_batch_size", "validation_freq"),
)
_ADVICE = (
    "All ranks call `fit`, `evaluate` and `predict` of a model with layers in parts, in the same "
    "order and with the same data, as each computes a part of every batch. Keep what only one rank "
    "shall do to files and printing."
)


@contextlib.contextmanager
def check_run(model: keras.Model, name: str, arguments: Mapping[str, object]) -> Iterator[None]:
    """Surrounds `fit`, `evaluate` or `predict` of `model`; `name` says which.

    Raises:
        ValueError: in all ranks, when they begin different runs; for callbacks that save a model
            with layers in parts, and for optimizers that need whole weights.
    """
    mesh = _mesh_of(model)
    if mesh is not None:
        problem = _problem(mesh, model, arguments) if name == "fit" else None
        refused = meeting.meet(
            mesh.processes,
            f"begins `{name}`",
            _facts(model, name, arguments),
            number=int(problem is not None),
            advice=_ADVICE,
        )
        if problem is not None:
            raise problem
        if any(refused):
            ranks = [rank for rank, flag in enumerate(refused) if flag]
            raise ValueError(f"`{name}` was refused in other ranks. Received: ranks {ranks}")
    yield


def _mesh_of(model: keras.Model) -> Mesh | None:
    layers = compat.flatten_layers(model)
    return next((layer.mesh for layer in layers if isinstance(layer, InParts)), None)


def _facts(model: keras.Model, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """What must be equal in all ranks: what says how many batches there are, and the rate."""
    facts = {key: _plain(arguments[key]) for key in _COMPARED if key in arguments}
    facts["data"] = _length(arguments.get("x"))
    if name == "fit":
        given = arguments.get("validation_data")
        facts["validation data"] = None if given is None else _length(given)
        if model.compiled and model.optimizer is not None:
            facts["optimizer"] = type(model.optimizer).__name__
            facts["learning rate"] = float(model.optimizer.learning_rate)
    return facts


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _length(data: object) -> str:
    """The number of batches or samples, where it is known."""
    if isinstance(data, tf.data.Dataset):
        number = compat.number_of_batches(data)
        return f"{number} batches" if number >= 0 else "of unknown length"
    if isinstance(data, keras.utils.PyDataset):
        return f"{data.num_batches} batches"
    leaves = keras.tree.flatten(data)
    shape = getattr(leaves[0], "shape", None) if leaves else None
    return f"{shape[0]} samples" if shape else "of unknown length"


def _problem(mesh: Mesh, model: keras.Model, arguments: Mapping[str, object]) -> ValueError | None:
    strategy = compat.model_strategy(model)
    if mesh.shape["data"] > 1 and not isinstance(strategy, MeshStrategy):
        return ValueError(
            "With several model groups a model is made and trained in the scope of "
            f"`mesh.strategy()`. Received: {model.name!r}, made without it, and shape={mesh.shape}"
        )
    given = arguments.get("callbacks") or []
    callbacks = getattr(given, "callbacks", given)
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if isinstance(callback, _SAVE):
            return ValueError(
                "A rank has parts of the weights only, so callbacks do not save them. Call "
                "`mesh.save_weights(model, path)` in all ranks, after `fit` or in a callback "
                f"of your own. Received: {type(callback).__name__}"
            )
    if model.compiled and model.optimizer is not None:
        try:
            check_optimizer(_own(model.optimizer))
        except ValueError as error:
            return error
    return None


def _own(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The user's optimizer, which `mesh.strategy()` has wrapped."""
    return optimizer.unwrap() if isinstance(optimizer, DistributedOptimizer) else optimizer


def check_saving(model: keras.Model, path: object, write: Callable[[object], object]) -> object:
    """Writes `model` to `path`, as Keras does.

    Raises:
        ValueError: for a model with layers in parts, before anything is written, unless
            `mesh.save_weights` writes it.
    """
    mesh = _mesh_of(model)
    if mesh is not None and not mesh.is_saving:
        raise ValueError(
            "A rank has parts of the weights only. Save with `mesh.save_weights(model, path)`, in "
            "all ranks; to export, load this file into a model of the layers of Keras. "
            f"Received: path={path}"
        )
    return write(path)


# After those of strategies, so that all ranks raise, not only the one that writes.
compat.hook_apply(of_optimizer)
compat.hook_runs(check_run)
compat.hook_saving(check_saving)
