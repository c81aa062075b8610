"""The engines of a mesh of workers: each group has numbers of its own for its operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.engines.mesh import Layout, MeshEngines
from tfdist.engines.processes import OneProcess, Processes
from tfdist.options import DEFAULT_BUCKET_BYTES
from tfdist.strategies.multi_worker.group_engine import is_sign_of_loss
from tfdist.strategies.multi_worker.joining import cluster_of_process, join, rank_of
from tfdist.strategies.multi_worker.numbered_engine import NumberedEngine, Numbers

# Far above the numbers that TensorFlow gives to the groups of a process.
_FIRST = 2**18


def engines(layout_of: Callable[[int, int], Layout], has_groups: bool) -> MeshEngines:
    """Connects this process to the others of a mesh.

    Args:
        layout_of: makes the layout from a rank and the number of ranks, or raises.
        has_groups: has no effect: groups need no preparation.

    Raises:
        ValueError: for an invalid TF_CONFIG, and with processes that only sum.
        TimeoutError: when other workers cannot be reached.
    """
    del has_groups
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    cluster = cluster_of_process()
    if cluster is None or cluster.size == 1:
        layout = layout_of(0, 1)
        alone = NumberedEngine(OneProcess(), Numbers(), DEFAULT_BUCKET_BYTES)
        return MeshEngines(layout, device, alone, alone, alone)
    if cluster.jobs.get("reducer"):
        raise ValueError(
            "Layers in parts exchange what only ranks have: reducers would have nothing to do. "
            f"Leave `--reducers` out. Received: {len(cluster.jobs['reducer'])} reducers"
        )
    rank = rank_of(cluster)
    layout = layout_of(rank, cluster.size)
    if join(cluster, for_mesh=True):
        compat.form_group(dict(enumerate(cluster.workers)), rank)

    def of_group(first: int, groups: Sequence[Sequence[int]]) -> NumberedEngine:
        (own,) = (place for place, ranks in enumerate(groups) if rank in ranks)
        processes: Processes = OneProcess()
        if len(groups[own]) > 1:
            processes = _Workers(first + own, groups[own], rank, cluster.workers)
        numbers = _numbers(first + own, processes.size)
        return NumberedEngine(processes, numbers, DEFAULT_BUCKET_BYTES)

    first = _FIRST + 1
    everyone = of_group(_FIRST, [range(cluster.size)])
    model = of_group(first, layout.model_groups)
    data = of_group(first + layout.data, layout.data_groups)
    return MeshEngines(layout, device, everyone, model, data)


def _numbers(place: int, size: int) -> Numbers:
    numbers = Numbers()
    numbers.begin(place, size)
    return numbers


class _Workers(Processes):
    """Some of the workers of a cluster.

    Args:
        place: the number of this group.
        ranks: the ranks of its workers in the cluster.
        own: the rank of this process in the cluster.
        addresses: of all workers.
        has_aside: whether there is another object for the operations of a thread.
    """

    def __init__(
        self,
        place: int,
        ranks: Sequence[int],
        own: int,
        addresses: Sequence[str],
        has_aside: bool = True,
    ):
        super().__init__(ranks.index(own), len(ranks))
        self._ranks, self._addresses = ranks, addresses
        self._numbers = _numbers(place, self.size)
        self._aside = _Workers(place, ranks, own, addresses, False) if has_aside else self

    @property
    def aside(self) -> Processes:
        """The same workers, by other numbers."""
        return self._aside

    def number(self, rank: int) -> int:
        """The rank in the cluster."""
        return self._ranks[rank]

    def name(self, rank: int) -> str:
        """The rank in the cluster, and the address."""
        number = self.number(rank)
        return f"rank {number} ({self._addresses[number]})"

    def lost(self, error: tf.errors.OpError) -> list[int] | None:
        """No rank: the error tells only that a connection broke."""
        return [] if is_sign_of_loss(error) else None

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self._numbers.sum(value)
