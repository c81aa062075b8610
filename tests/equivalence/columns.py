"""The columns of the table: where features are trained."""

from __future__ import annotations

import dataclasses

import tfdist
from tests.equivalence import harness
from tests.equivalence.results import Result


@dataclasses.dataclass(frozen=True)
class Column:
    """A strategy on a number of processes and devices.

    Attributes:
        name: what tests are called by.
        strategy: the name of tfdist's strategy.
        processes: their number; one stands for the process of the test itself.
        devices: virtual CPU devices of each process.
        complete: whether the default suite trains every feature; otherwise it takes a sample.
    """

    name: str
    strategy: str
    processes: int
    devices: int
    complete: bool

    @property
    def replicas(self) -> int:
        return self.processes * self.devices

    @property
    def twin(self) -> str | None:
        """The column of one process with as many replicas, which gives the same weights."""
        return f"mirrored-{self.replicas}" if self.processes > 1 else None

    def train(self, feature: harness.Feature) -> Result:
        """Trains `feature`, in this process and its peers."""
        try:
            outcome, model = harness.train(feature, self._strategy(feature))
            return Result.of(outcome, model)
        finally:
            harness.forget()

    def _strategy(self, feature: harness.Feature):
        if self.processes > 1:
            return tfdist.Strategy(self.strategy, **feature.options)
        devices = [f"CPU:{index}" for index in range(self.devices)]
        return tfdist.MirroredStrategy(devices, **feature.options)


# In the order of the tests: while processes train, those of the tests train references and twins.
COLUMNS = (
    Column("multi_worker-2", "multi_worker", 2, 1, complete=True),
    Column("horovod-2", "horovod", 2, 1, complete=True),
    Column("multi_worker-2x2", "multi_worker", 2, 2, complete=False),
    Column("mirrored-1", "mirrored", 1, 1, complete=False),
    Column("mirrored-2", "mirrored", 1, 2, complete=True),
    Column("mirrored-3", "mirrored", 1, 3, complete=False),
    Column("mirrored-4", "mirrored", 1, 4, complete=False),
)
BY_NAME = {column.name: column for column in COLUMNS}
