"""`Mesh`: the ranks that hold parts of one model."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfdist.data import seeds
from tfdist.elastic import membership
from tfdist.processes import meeting
from tfdist.strategies.registry import BACKENDS
from tfdist.tensor_parallel import saving
from tfdist.tensor_parallel.functions import Functions
from tfdist.tensor_parallel.shape import backend_of, check_shape, layout_of, may_have_groups

if TYPE_CHECKING:
    from tfdist.tensor_parallel.strategy import MeshStrategy

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
    """The ranks of a job as a mesh of `data` times `model` ranks.

    The ranks of a model group hold parts of one model and see the same batches. Ranks that follow
    each other are in one group, as they are likely to be on one machine.

    With one model group, layers exchange what they must, and `fit` is that of Keras: make no
    strategy. With several, each model group trains on its part of every batch: make the model in
    `mesh.strategy().scope()`, which also works with one model group.

    Start the ranks with `tfdist run`, `horovodrun` or by TF_CONFIG.

    Args:
        shape: `{"data": d, "model": m}`, with `d * m` ranks. An axis that is left out gets what is
            left of the ranks. None for one model group of all ranks.
        backend: what connects the ranks: "horovod", "multi_worker", or "auto", which chooses as
            `tfdist.Strategy("auto")` does.

    Attributes:
        shape: the number of ranks along each axis.
        rank: this rank among all, 0-based.
        data_rank: the number of this rank's model group.
        model_rank: the place of this rank in its model group.
        functions: the operations of the model group.
        everyone: the operations of all ranks.
        processes: all ranks.

    Raises:
        ImportError: when Horovod is chosen and not installed.
        ValueError: for another shape; if no random seed was set, or ranks have set different ones;
            in the scope of a strategy; in an elastic job; where neither backend can connect ranks.
        TimeoutError: when other ranks cannot be reached.

    Example:

    >>> import keras, tfdist
    >>> keras.utils.set_random_seed(1)
    >>> mesh = tfdist.tensor_parallel.Mesh()  # not started by `tfdist run`: alone
    >>> mesh.shape
    {'data': 1, 'model': 1}
    """

    def __init__(self, shape: Mapping[str, int] | None = None, backend: str = "auto"):
        check_no_strategy()
        check_shape(shape)
        devices = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")
        name = backend_of(backend, len(devices))
        if membership.is_elastic():
            raise ValueError(
                "A rank that is lost would take its parts of layers with it. Start the job without "
                "`--min`. Received: a rank of an elastic job"
            )
        connect = BACKENDS[name].load_mesh()
        engines = connect(functools.partial(layout_of, shape), may_have_groups(shape))
        layout = engines.layout
        self.engines = engines
        self.functions = Functions(engines.model)
        self.everyone = Functions(engines.everyone)
        self.processes = engines.everyone.processes
        self.shape = {"data": layout.data, "model": layout.model}
        self.rank = layout.rank
        self.data_rank, self.model_rank = layout.data_rank, layout.model_rank
        self.wholes: dict[int, np.ndarray] = {}  # by the id of a variable, while they are saved
        self.is_saving = False
        self._strategies: list[MeshStrategy] = []
        seed = seeds.global_seed()
        facts = {"random seed": seed, "shape": self.shape, "backend": name}
        meeting.meet(self.processes, "makes a mesh", facts, advice=_SEED)
        if seed is None:
            raise ValueError(f"{_SEED} Received: no random seed")
        if not self.processes.is_alone:
            _made.append(self)

    @property
    def size(self) -> int:
        """The number of ranks of a model group."""
        return self.shape["model"]

    def strategy(self, **options: object) -> MeshStrategy:
        """The strategy whose replicas are the model groups; the same at each call.

        Data sets are global, as with other strategies of tfdist: each model group gets its part of
        every batch, and the result is that of one device.

        Args:
            **options: `accumulation_steps`, `bucket_bytes` and `log_all_ranks`, as of other
                strategies, at the first call.

        Raises:
            ValueError: for other options, and for other values at a later call.

        Example:

        >>> import keras, numpy as np, tfdist
        >>> keras.utils.set_random_seed(1)
        >>> mesh = tfdist.tensor_parallel.Mesh()
        >>> with mesh.strategy().scope():
        ...     layers = [keras.Input((4,)), tfdist.tensor_parallel.FeedForward(8, 2, mesh)]
        ...     model = keras.Sequential([*layers, keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
        """
        from tfdist.tensor_parallel.strategy import MeshStrategy

        if not self._strategies:
            self._strategies.append(MeshStrategy(self, **options))  # type: ignore[arg-type]
        found = self._strategies[0]
        found.check_same(options)
        return found

    @property
    def trains_here(self) -> bool:
        """Whether no strategy is active but that of this mesh."""
        own = any(tf.distribute.get_strategy() is strategy for strategy in self._strategies)
        return own or not tf.distribute.has_strategy()

    def check_scope(self) -> None:
        """Raises ValueError in the scope of a strategy that is not this mesh's."""
        if not self.trains_here:
            raise ValueError(
                "Layers in parts train in `mesh.strategy().scope()`, or with no strategy if there "
                "is one model group. Received: the scope of a "
                f"{type(tf.distribute.get_strategy()).__name__}"
            )

    def check_training(self) -> None:
        """Raises ValueError where each model group would train for itself."""
        self.check_scope()
        if self.shape["data"] > 1 and not tf.distribute.has_strategy():
            raise ValueError(
                "With several model groups a model is made and trained in the scope of "
                "`mesh.strategy()`, which averages what they compute. "
                f"Received: shape={self.shape}, and a model without that strategy"
            )

    def part_of(self, whole: np.ndarray, axis: int | None) -> np.ndarray:
        """This rank's part of an array that is cut along `axis`; all of it for None."""
        return whole if axis is None else np.split(whole, self.size, axis)[self.model_rank]

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
        saving.save_weights(self, model, path)


def check_no_strategy() -> None:
    """Raises ValueError in the scope of a strategy."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "Layers in parts train with no strategy: ranks would divide the batch, of which each "
            "must see all. Leave `strategy.scope()` out. "
            f"Received: {type(tf.distribute.get_strategy()).__name__}"
        )
