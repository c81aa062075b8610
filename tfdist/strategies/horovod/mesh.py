"""The engines of a mesh of ranks that Horovod connects: each group is one of its process sets."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.engines.mesh import Layout, MeshEngines
from tfdist.engines.processes import OneProcess
from tfdist.options import Options
from tfdist.strategies.horovod.engine import HorovodEngine
from tfdist.strategies.horovod.strategy import Ranks, connected, device_of

# By their ranks: Horovod takes each set once.
_sets: dict[tuple[int, ...], Any] = {}


def engines(layout_of: Callable[[int, int], Layout], has_groups: bool) -> MeshEngines:
    """Connects this process to the others of a mesh.

    Args:
        layout_of: makes the layout from a rank and the number of ranks, or raises.
        has_groups: whether there are groups of some of the ranks.

    Raises:
        ImportError: when Horovod is not installed or was built for another TensorFlow.
        ValueError: as `connected`; when Horovod was initialized before, so that it takes no
            groups.
    """
    hvd, everyone = connected(Options(), "dynamic" if has_groups else None)
    layout = layout_of(hvd.rank(), hvd.size())

    def of_groups(groups: list[list[int]]) -> HorovodEngine:
        if len(groups) == 1:
            return everyone
        if len(groups) == hvd.size():
            return HorovodEngine(hvd, OneProcess())
        sets = [_set_of(hvd, ranks) for ranks in groups]  # all ranks make all of them
        (own,) = (place for place, ranks in enumerate(groups) if layout.rank in ranks)
        group = _Group(hvd, sets[own], groups[own])
        return HorovodEngine(group, Ranks(group, groups[own]))  # type: ignore[arg-type]

    model, data = of_groups(layout.model_groups), of_groups(layout.data_groups)
    return MeshEngines(layout, device_of(hvd), everyone, model, data)


def _set_of(hvd: ModuleType, ranks: list[int]) -> Any:
    if tuple(ranks) not in _sets:
        try:
            _sets[tuple(ranks)] = hvd.add_process_set(ranks)
        except ValueError as error:
            raise ValueError(
                "Horovod was initialized before the mesh was made, so it takes no groups. Make the "
                f"mesh before any strategy. Received: {error}"
            ) from error
    return _sets[tuple(ranks)]


def _within(process_set: object, operation: Callable) -> Callable:
    """An operation of Horovod, within a set of ranks."""

    def run(*args: object, **kwargs: object) -> Any:
        try:
            return operation(*args, process_set=process_set, **kwargs)
        except ValueError as error:
            if "Process set" not in str(error):
                raise
            # Horovod has ended, as a rank is lost, and forgets its sets.
            raise tf.errors.UnknownError(None, None, f"Horovod has ended: {error}") from error

    return run


class _Group:
    """What an engine uses of the module `horovod.tensorflow`, among some of the ranks.

    Args:
        hvd: the module.
        process_set: Horovod's set of these ranks.
        ranks: the ranks, in their order.
    """

    def __init__(self, hvd: ModuleType, process_set: object, ranks: list[int]):
        self._ranks = ranks
        self._own = ranks.index(hvd.rank())
        self.Sum = hvd.Sum
        names = ("broadcast", "allreduce", "grouped_allreduce", "allgather", "alltoall")
        self._broadcast, self.allreduce, self.grouped_allreduce, self.allgather, self.alltoall = (
            _within(process_set, getattr(hvd, name)) for name in names
        )

    def rank(self) -> int:
        """The place of this process among the ranks."""
        return self._own

    def size(self) -> int:
        """The number of ranks."""
        return len(self._ranks)

    def broadcast(self, tensor: tf.Tensor, root_rank: int, **options: object) -> tf.Tensor:
        """The tensor of one of the ranks; Horovod counts it among all ranks."""
        return self._broadcast(tensor, root_rank=self._ranks[root_rank], **options)
