"""What `make bench` and `make bench-full` measure."""

from __future__ import annotations

import dataclasses

from benchmarks.side_by_side.rig import UNLIMITED
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import VARIABLES

# What the goals need. A launch on two hosts takes about 15 seconds beside its steps, and a dense
# exchange at 100 Mbit/s 3.5 seconds per step, so that both rounds take about 10 minutes.
QUICK_SYSTEMS = (
    "tfdist-horovod",
    "tfdist-horovod-powersgd",
    "tfdist-multi_worker",
    "horovod",
    "horovod-fp16",
    "mwms",
    "mwms-keras3",
    "ddp",
    "ddp-powersgd",
    "keras",
    "tf-keras",
    "torch",
)
MODEL_SYSTEMS = (*QUICK_SYSTEMS, "ddp-fp16")
BEST = "tfdist-horovod-powersgd"
FLOORS = ("keras", "tf-keras", "torch")
SCALED = ("tfdist-horovod", "tfdist-multi_worker", BEST, "horovod", "mwms", "ddp", *FLOORS)
# All that exchange anything, and work.
MULTIPLE = tuple(n for n, s in SYSTEMS.items() if not s.single and n != "mwms-keras3")
COUNTED = ("tfdist-horovod", "tfdist-multi_worker", "horovod", "mwms", "ddp", *FLOORS)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One model on so many hosts.

    Attributes:
        work: its name in `WORKS`.
        hosts: how many.
        batch: samples per rank and step.
        steps: that are timed on each link.
        systems: the names of those that are measured.
        first_steps: instead of `steps` on the first link, for the steps to a loss.
    """

    work: str
    hosts: int
    batch: int
    steps: int
    systems: tuple[str, ...]
    first_steps: int | None = None

    @property
    def place(self) -> dict[str, str | int]:
        """What results are grouped by."""
        return {"work": self.work, "hosts": self.hosts, "batch": self.batch}

    def steps_on(self, link: int) -> int:
        """How many steps are timed on one of the links, which are numbered."""
        return self.steps if link or self.first_steps is None else self.first_steps


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        cells: models and hosts.
        rates: of the links.
        rounds: how often each system is launched.
    """

    cells: tuple[Cell, ...]
    rates: tuple[str, ...]
    rounds: int


PLANS = {
    "quick": Plan((Cell("mlp", 2, 64, 5, QUICK_SYSTEMS),), (UNLIMITED, "1gbit", "100mbit"), 2),
    "full": Plan(
        (
            Cell("mlp", 2, 64, 10, tuple(SYSTEMS)),
            Cell("cnn", 2, 16, 10, MODEL_SYSTEMS),
            Cell("transformer", 2, 8, 10, MODEL_SYSTEMS),
            Cell("embedding", 2, 256, 10, MODEL_SYSTEMS),
            # Weak scaling beyond two hosts, then strong: 64 samples for all, 63 with three hosts.
            Cell("mlp", 3, 64, 6, SCALED),
            Cell("mlp", 4, 64, 6, SCALED),
            Cell("mlp", 2, 32, 6, SCALED),
            Cell("mlp", 3, 21, 6, SCALED),
            Cell("mlp", 4, 16, 6, SCALED),
        ),
        (UNLIMITED, "10gbit", "1gbit", "100mbit"),
        5,
    ),
    # Steps to a loss do not depend on the link, so they are counted on the first, the fastest.
    "target": Plan(
        (
            Cell("digits", 2, 32, 5, MULTIPLE, first_steps=150),
            Cell("characters", 2, 8, 5, MULTIPLE, first_steps=190),
        ),
        (UNLIMITED, "10gbit", "1gbit", "100mbit"),
        1,
    ),
    # What a step adds is a small difference, so it takes more steps.
    "variables": Plan(
        tuple(Cell(f"variables-{count}", 2, 32, 20, COUNTED) for count in VARIABLES),
        (UNLIMITED, "1gbit"),
        4,
    ),
}
