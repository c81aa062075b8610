"""`Mesh`: the ranks that hold parts of one model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from tfdist.arguments import check_instance, check_path, shown
from tfdist.data import seeds
from tfdist.engines.contract import Engine
from tfdist.options import Options
from tfdist.processes import meeting
from tfdist.strategies.horovod.strategy import connected
from tfdist.tensor_parallel.functions import Functions

_SEED = (
    "All ranks must draw the same random numbers, as they shuffle the same data and cut the same "
    "first weights. Call `keras.utils.set_random_seed` with the same number in all ranks, before "
    "the mesh is made."
)


# Those of several ranks. Kept, as what ranks check must not depend on when memory is freed.
_made: list[Mesh] = []


def of_process() -> Mesh | None:
    """The mesh of several ranks that this process has made last; None if there is none."""
    return _made[-1] if _made else None


class Mesh:
    """The ranks of a job, which Horovod connects, as a mesh of `data` times `model` ranks.

    The ranks of a model group hold parts of one model and see the same batches. There is one model
    group yet, of all ranks.

    Start the ranks with `tfdist run --strategy horovod`, and make no strategy: layers exchange what
    they must, and `fit` is that of Keras.

    Args:
        shape: `{"data": 1, "model": number of ranks}`; None for that.

    Attributes:
        shape: the number of ranks along each axis.
        rank: this rank, 0-based.
        functions: the operations of the model group.

    Raises:
        ImportError: when Horovod is not installed.
        ValueError: for another shape; if no random seed was set, or ranks have set different ones;
            in the scope of a strategy.

    Example:

    >>> import keras, tfdist
    >>> keras.utils.set_random_seed(1)
    >>> mesh = tfdist.tensor_parallel.Mesh()  # not started by `tfdist run`: alone
    >>> mesh.shape
    {'data': 1, 'model': 1}
    """

    def __init__(self, shape: Mapping[str, int] | None = None):
        if shape is not None and not isinstance(shape, Mapping):
            raise ValueError(f"`shape` must be a dict or None. Received: shape={shown(shape)}")
        check_no_strategy()
        _, engine = connected(Options())
        self._init(engine, shape)

    def _init(self, engine: Engine, shape: Mapping[str, int] | None) -> None:
        processes = engine.processes
        self.functions = Functions(engine)
        self.shape = {"data": 1, "model": processes.size}
        self.rank = processes.rank
        self.wholes: dict[int, np.ndarray] = {}  # by the id of a variable, while they are saved
        if shape is not None and dict(shape) != self.shape:
            raise ValueError(
                "There is one model group yet, of all ranks: leave `shape` out, or give "
                f"{self.shape}. For several groups train with `tfdist.Strategy(..., "
                f'sharding="parameters")`. Received: shape={shown(shape)}'
            )
        seed = seeds.global_seed()
        meeting.meet(processes, "makes a mesh", {"random seed": seed}, advice=_SEED)
        if seed is None:
            raise ValueError(f"{_SEED} Received: no random seed")
        if not processes.is_alone:
            _made.append(self)

    @property
    def size(self) -> int:
        """The number of ranks of a model group."""
        return self.shape["model"]

    def part_of(self, whole: np.ndarray, axis: int | None) -> np.ndarray:
        """This rank's part of an array that is cut along `axis`; all of it for None."""
        return whole if axis is None else np.split(whole, self.size, axis)[self.rank]

    def whole_of(self, part: np.ndarray, axis: int | None) -> np.ndarray:
        """The array that the ranks have the parts of; called by all ranks."""
        if axis is None:
            return part
        processes = self.functions.processes
        parts = [processes.broadcast([part], root)[0] for root in range(self.size)]
        return np.concatenate(parts, axis)

    def save_weights(self, model: keras.Model, path: str | os.PathLike) -> None:
        """Writes the weights of `model` as if its layers were whole; called by all ranks.

        A model of Keras' own layers, `keras.layers.Dense` in place of `tensor_parallel.Dense` and
        so on, loads the file. `model.load_weights` of all ranks reads it, on any number of ranks.
        The state of the optimizer is not written.

        All ranks raise if one cannot go on. Rank 0 needs memory for the whole layers.

        Args:
            model: a built model.
            path: ends with `.weights.h5`. Rank 0 writes it.

        Raises:
            TypeError: when `model` is no Keras model, and `path` no path.
            ValueError: for another ending.
            OSError: in the other ranks, when rank 0 could not write; rank 0 raises what it met.
        """
        check_instance("model", model, keras.Model, "keras.Model")
        check_path("path", path)
        wrong = not os.fspath(path).endswith(".weights.h5")
        facts = {"model": model.name, "weights": [list(v.shape) for v in model.variables]}
        if any(self._meet("saves weights", facts, wrong)):
            raise ValueError(
                "`path` must end with `.weights.h5`, in all ranks. "
                f"Received in this rank: path={shown(path)}"
            )
        error = self._written(model, path)
        failed = self._meet("has written weights", {}, error is not None)
        if error is not None:
            raise error
        if any(failed):
            raise OSError(
                f"Rank 0 could not write the weights; its own error says why. Received: path={path}"
            )

    def _meet(self, doing: str, facts: dict[str, object], flag: bool) -> list[int]:
        """Every rank's `flag`, where all do the same."""
        return meeting.meet(self.functions.processes, doing, facts, number=int(flag))

    def _written(self, model: keras.Model, path: str | os.PathLike) -> Exception | None:
        """Gathers whole weights, then writes them in rank 0; what was raised there."""
        try:
            for variable in model.variables:
                axis = axis_of(variable)
                if axis is not None:
                    whole = self.whole_of(variable.numpy(), axis)
                    if self.rank == 0:
                        self.wholes[id(variable)] = whole
            if self.rank == 0:
                with _without_optimizer(model):
                    model.save_weights(path)
        except Exception as error:  # raised once all ranks know
            return error
        finally:
            self.wholes.clear()
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


def check_no_strategy() -> None:
    """Raises ValueError in the scope of a strategy."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "Layers in parts train with no strategy: ranks would divide the batch, of which each "
            "must see all. Leave `strategy.scope()` out. "
            f"Received: {type(tf.distribute.get_strategy()).__name__}"
        )
