"""The engines of a mesh: those of all ranks, and those of this rank's two groups."""

from __future__ import annotations

import dataclasses

from tfdist.engines.contract import Engine


@dataclasses.dataclass(frozen=True)
class Layout:
    """Ranks in rows: those of one row hold the parts of one model, as they are near each other.

    Attributes:
        data: the number of rows.
        model: the number of ranks in each.
        rank: this rank, of `data * model`.
    """

    data: int
    model: int
    rank: int

    @property
    def data_rank(self) -> int:
        """The row of this rank: which part of a batch it sees."""
        return self.rank // self.model

    @property
    def model_rank(self) -> int:
        """The place of this rank in its row: which parts of layers it has."""
        return self.rank % self.model

    @property
    def model_groups(self) -> list[list[int]]:
        """The ranks of each row."""
        return [list(range(d * self.model, (d + 1) * self.model)) for d in range(self.data)]

    @property
    def data_groups(self) -> list[list[int]]:
        """The ranks at each place of all rows, which have the same parts of layers."""
        return [list(range(m, self.data * self.model, self.model)) for m in range(self.model)]


@dataclasses.dataclass(frozen=True)
class MeshEngines:
    """What carries tensors in a mesh.

    Attributes:
        layout: where this rank is.
        device: of this process, such as "CPU:0".
        everyone: between all ranks.
        model: between the ranks of this rank's row.
        data: between the ranks at this rank's place of all rows.
    """

    layout: Layout
    device: str
    everyone: Engine
    model: Engine
    data: Engine
