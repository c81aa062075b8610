"""Writes whole weights of models with layers in parts, in the layout of Keras' own layers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import keras

from tfdist.arguments import check_instance, check_path, shown
from tfdist.processes import meeting

if TYPE_CHECKING:
    from tfdist.tensor_parallel.mesh import Mesh


def save_weights(mesh: Mesh, model: keras.Model, path: str | os.PathLike) -> None:
    """What `Mesh.save_weights` does."""
    check_instance("model", model, keras.Model, "keras.Model")
    check_path("path", path)
    wrong = not os.fspath(path).endswith(".weights.h5")
    facts = {"model": model.name, "weights": [list(v.shape) for v in model.variables]}
    if any(meeting.meet(mesh.processes, "saves weights", facts, number=int(wrong))):
        raise ValueError(
            "`path` must end with `.weights.h5`, in all ranks. "
            f"Received in this rank: path={shown(path)}"
        )
    error = _written(mesh, model, path)
    failed = int(error is not None)
    failures = meeting.meet(mesh.processes, "has written weights", {}, number=failed)
    if error is not None:
        raise error
    if any(failures):
        raise OSError(
            f"Rank 0 could not write the weights; its own error says why. Received: path={path}"
        )


def _written(mesh: Mesh, model: keras.Model, path: str | os.PathLike) -> Exception | None:
    """Gathers whole weights, then writes them in rank 0; what was raised there."""
    try:
        for variable in model.variables:
            axis = axis_of(variable)
            if axis is not None:
                whole = mesh.whole_of(variable.numpy(), axis)
                if mesh.rank == 0:
                    mesh.wholes[id(variable)] = whole
        # Ranks with the same parts save together: rank 0 writes, others may have to answer it.
        if mesh.model_rank == 0:
            mesh.is_saving = True
            with _without_optimizer(model):
                model.save_weights(path)
    except Exception as error:  # raised once all ranks know
        return error
    finally:
        mesh.wholes.clear()
        mesh.is_saving = False
    return None


def axis_of(variable: keras.Variable) -> int | None:
    """The axis along which ranks have parts of `variable`; None if each has all of it."""
    return getattr(variable, "axis_of_parts", None)


@contextlib.contextmanager
def _without_optimizer(model: keras.Model) -> Iterator[None]:
    """Leaves out the optimizer, which Keras saves with weights."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        optimizer.save_own_variables = lambda store: None
    try:
        yield
    finally:
        if optimizer is not None:
            del optimizer.save_own_variables
