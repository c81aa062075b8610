"""What is known of a run, as data: numbers of each rank in each epoch, and what follows of them.

All views read this: the report, TensorBoard, the line of an epoch, and the keys of `History`. Needs
no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class RankNumbers:
    """What a rank has measured in an epoch. The first call of a step is left out: it is traced.

    Attributes:
        host: the name of the machine.
        steps: how many steps were measured.
        seconds: from the end of the first call to the end of the last one.
        calls: seconds inside of Keras' calls of the step; the rest of `seconds` is between steps.
        compute: seconds from batches to gradients; None where the steps cannot tell.
        exchange: seconds from gradients to their sums, as far as nothing hides them.
        update: seconds from sums to updated weights.
        samples: of the rank in these steps; None where the steps cannot tell.
        memory: bytes of main memory in use at the end of the epoch.
        peak_memory: the most bytes of main memory so far.
        device_memory: the most bytes of the memory of GPUs so far; None without.
        sent: bytes over the machine's network interfaces, by all programs; None if not known.
        received: the same, received.
    """

    host: str
    steps: int = 0
    seconds: float = 0.0
    calls: float = 0.0
    compute: float | None = None
    exchange: float | None = None
    update: float | None = None
    samples: float | None = None
    memory: int = 0
    peak_memory: int = 0
    device_memory: int | None = None
    sent: int | None = None
    received: int | None = None

    def text(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def of_text(text: str) -> RankNumbers | None:
        """What `text` has returned; None for a text that was cut."""
        try:
            return RankNumbers(**json.loads(text))
        except json.JSONDecodeError:
            return None

    @property
    def is_divided(self) -> bool:
        """Whether the parts of a step are known, and not only the time to compute.

        Replicas that train apart exchange outside of their steps.
        """
        return bool(self.compute) and bool(self.exchange or self.update)

    def parts(self) -> dict[str, float]:
        """The parts of a step on average, in seconds, by name; empty without steps."""
        if not self.steps:
            return {}
        known = (self.compute or 0.0) + (self.exchange or 0.0) + (self.update or 0.0)
        found = {"data" if self.is_divided else "rest": max(0.0, self.calls - known)}
        if self.compute:
            found["compute"] = self.compute
        if self.is_divided:
            found["exchange"] = self.exchange or 0.0
            found["update"] = self.update or 0.0
        found["between"] = max(0.0, self.seconds - self.calls)
        return {name: seconds / self.steps for name, seconds in found.items()}


class Traffic(NamedTuple):
    """Bytes that a replica hands to the exchange for an update: as sent, and without compression.

    Attributes:
        sent: the bytes; of a sparse gradient those of its table.
        dense: the bytes of all gradients as they are.
    """

    sent: int
    dense: int


class WorkerNumbers(NamedTuple):
    """What a worker of a parameter server has done in an epoch.

    Attributes:
        updates: how many of its gradients were applied.
        staleness: their mean staleness, in updates.
        dropped: how many of its gradients were dropped.
        waits: how often it had to wait.
    """

    updates: int
    staleness: float
    dropped: int
    waits: int


class Slowest(NamedTuple):
    """The rank that computes longest, and what it costs.

    Attributes:
        rank: its number.
        longer: its time to compute, divided by that of the fastest rank.
        waiting: the part of the step for which the others wait for it on average, from 0 to 1.
    """

    rank: int
    longer: float
    waiting: float

    def __str__(self) -> str:
        return (
            f"Rank {self.rank} computes {self.longer:.1f}x as long as the fastest one; "
            f"the others wait {self.waiting:.0%} of the step."
        )


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What is known of an epoch.

    Attributes:
        number: from 0.
        ended: when it ended, as `time.time`.
        logs: Keras' logs.
        ranks: the numbers of the ranks; None for one that is not known, as it has just joined.
        traffic: the bytes of an update; None where nothing is exchanged, or where it is not known.
        workers: of parameter servers, by index.
    """

    number: int
    ended: float
    logs: dict[str, float]
    ranks: Sequence[RankNumbers | None]
    traffic: Traffic | None = None
    workers: dict[int, WorkerNumbers] = dataclasses.field(default_factory=dict)

    def measured(self) -> dict[int, RankNumbers]:
        """The ranks that have measured steps, by number."""
        return {n: rank for n, rank in enumerate(self.ranks) if rank is not None and rank.steps}

    def mean_parts(self) -> dict[str, float]:
        """The parts of a step in seconds, on average over the ranks."""
        rows = [rank.parts() for rank in self.measured().values()]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}

    def step_seconds(self) -> float | None:
        """The time of a step, on average over the ranks; None if it is not known."""
        return sum(self.mean_parts().values()) or None

    def slowest(self) -> Slowest | None:
        """The slowest rank; None where there are not two whose time to compute is known."""
        times = {n: r.compute / r.steps for n, r in self.measured().items() if r.compute}
        step = self.step_seconds()
        if len(times) < 2 or step is None:
            return None
        rank = max(times, key=lambda n: times[n])
        others = [times[rank] - seconds for n, seconds in times.items() if n != rank]
        waiting = min(1.0, sum(others) / len(others) / step)
        return Slowest(rank, times[rank] / min(times.values()), waiting)

    def history(self) -> dict[str, float]:
        """What is added to Keras' logs."""
        found = {f"{name}_seconds": seconds for name, seconds in self.mean_parts().items()}
        if (step := self.step_seconds()) is not None:
            found["step_seconds"] = step
        if (slowest := self.slowest()) is not None:
            found |= {"slowest_rank": slowest.rank, "waiting": slowest.waiting}
        if self.traffic is not None:
            found["sent_bytes"] = self.traffic.sent
        return found


@dataclasses.dataclass
class Run:
    """What is known of a run of `fit`.

    Attributes:
        title: what is trained.
        began: when it began, as `time.time`.
        wanted: how many epochs there are to be.
        environment: what it runs on, by name.
        left_out: what is not measured here, and why; a sentence for each.
        epochs: those that have ended.
        has_ended: whether `fit` has come to its end.
        metrics: the names of what the steps themselves log: the loss, and the user's metrics.
        earlier: how many runs the same callback has seen before.
    """

    title: str
    began: float
    wanted: int | None
    environment: dict[str, str]
    left_out: list[str]
    epochs: list[Epoch] = dataclasses.field(default_factory=list)
    has_ended: bool = False
    metrics: set[str] = dataclasses.field(default_factory=set)
    earlier: int = 0
