"""What a rank says of itself while it trains: small files in a folder of its launcher.

Needs no TensorFlow: the launcher reads them.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import NamedTuple

SECONDS = 0.5
"""How often a rank says something, at most."""


class Status(NamedTuple):
    """What a rank does, or what a chief knows of a worker.

    Attributes:
        name: such as "rank 0".
        written: when this was so, as `time.time`.
        epoch: the number of the epoch, from 1.
        step: how many steps of the epoch are done, or how many updates a worker has made.
        epochs: how many epochs there are; None if that is not known.
        steps: how many steps an epoch has; None if that is not known.
        samples: per second; None if that is not known.
        data: the part of the time in which it waits for data, from 0 to 1, with what the calls of
            steps take; None if that is not known.
        others: the part of the time in which it waits for the exchange, from 0 to 1; None if that
            is not known.
        memory: bytes of main memory; None if that is not known.
    """

    name: str
    written: float
    epoch: int
    step: int
    epochs: int | None = None
    steps: int | None = None
    samples: float | None = None
    data: float | None = None
    others: float | None = None
    memory: int | None = None

    def cells(self, now: float) -> list[str]:
        """As short texts: of the rank, epoch, step, speed, waits and memory; "" for what is not."""
        silence = self._silence(now)

        def share(value: float | None) -> str:
            return "" if value is None else f"{value:.0%}"

        return [
            f"{self.name} ({silence})" if silence else self.name,
            f"{self.epoch}/{self.epochs}" if self.epochs else f"{self.epoch}",
            f"{self.step}/{self.steps}" if self.steps else f"{self.step}",
            "" if self.samples is None else f"{self.samples:,.0f}",
            share(self.data),
            share(self.others),
            "" if self.memory is None else f"{self.memory / 1e9:.2f} GB",
        ]

    def line(self, now: float) -> str:
        """As a sentence."""
        name, epoch, step, *more = self.cells(now)
        return f"{name}: {', '.join([f'epoch {epoch}', f'step {step}', *_said(*more)])}"

    def pieces(self, now: float) -> list[str]:
        """The pieces of a sentence, those that change most first."""
        _, epoch, step, *more = self.cells(now)
        silence = self._silence(now)
        first = [f"{self.name}: step {step}", *([silence] if silence else [])]
        return [*first, f"epoch {epoch}", *_said(*more)]

    def _silence(self, now: float) -> str:
        silent = now - self.written
        return f"silent for {silent:.0f} s" if silent > 20 * SECONDS else ""


def _said(samples: str, data: str, others: str, memory: str) -> list[str]:
    """The pieces of a sentence for cells, of those that are known."""
    waits = " and ".join(
        [f"{data} for data"] * bool(data) + [f"{others} for others"] * bool(others)
    )
    found = [f"{samples} samples/s"] * bool(samples) + [f"waits {waits}"] * bool(waits)
    return found + [memory] * bool(memory)


HEAD = ("", "epoch", "step", "samples/s", "waits for data", "for others", "memory")
"""The names of the cells of a status."""


def write(folder: str, statuses: Sequence[Status]) -> None:
    """Writes what this process says, in place of what it has said before.

    Raises:
        OSError: when that cannot be written.
    """
    path = pathlib.Path(folder) / f"{os.getpid()}"
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(statuses))
    partial.replace(path)


def read(folder: str, pids: Sequence[int]) -> list[Status]:
    """What the processes say that have these numbers, in the order of their names."""
    found = []
    for pid in pids:
        path = pathlib.Path(folder) / f"{pid}"
        if path.exists():
            found += [Status(*row) for row in json.loads(path.read_text())]
    return sorted(found, key=_order)


def _order(status: Status) -> tuple[str, int]:
    kind, _, number = status.name.partition(" ")
    return kind, int(number) if number.isdigit() else 0


def now() -> float:
    """The time that statuses have."""
    return time.time()
