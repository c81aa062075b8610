"""What `make bench` and `make bench-full` measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from benchmarks.side_by_side.goals import DENSE
from benchmarks.side_by_side.rig import UNLIMITED
from benchmarks.side_by_side.systems import COMPARED, MIXED, SYSTEMS
from benchmarks.side_by_side.work import VARIABLES

# The systems that the goals need. A launch on two hosts takes about 15 seconds besides its steps,
# and a dense exchange at 100 Mbit/s takes 3.5 seconds per step. So both rounds take about 12
# minutes.
TRAINING = (
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
QUICK_SYSTEMS = (*TRAINING, "keras-eigen", "horovod-alone")
MODEL_SYSTEMS = (*TRAINING, "tfdist-horovod-fp16", "ddp-fp16")
CODECS = ("", "-fp16", "-powersgd")
OWN_CODECS = (*CODECS, f"-{MIXED}")
RANKED = (
    *(f"tfdist-{name}{codec}" for name in ("horovod", "multi_worker") for codec in OWN_CODECS),
    "horovod",
    "horovod-fp16",
    "mwms",
    *(f"ddp{codec}" for codec in CODECS),
)
SPARSE = tuple(name for name in RANKED if name not in ("ddp", "ddp-fp16"))
SMALL = tuple(name for name in RANKED if name.endswith(("powersgd", MIXED)))
BEST = "tfdist-horovod-powersgd"
FLOORS = ("keras", "tf-keras", "torch")
EVERY = (*RANKED, *FLOORS, "keras-beside")
SCALED = (*DENSE, BEST, "horovod", "mwms", "ddp", *FLOORS)
# All systems that train on several hosts, and that work.
MULTIPLE = tuple(
    name
    for name, system in COMPARED.items()
    if system.trains and system.exchanges and name != "mwms-keras3" and not name.endswith(MIXED)
)
# All with one codec for all variables.
CODED = tuple(n for n in COMPARED if n != "keras-beside" and not n.endswith(MIXED))
PREDICTED = (
    *(f"tfdist-{name}{codec}" for name in ("horovod", "multi_worker") for codec in CODECS),
    "keras",
    "keras-beside",
)
COUNTED = (*DENSE, "horovod", "mwms", "ddp", *FLOORS, "keras-late")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One model on so many hosts.

    Attributes:
        work: the name of the model in `WORKS`.
        hosts: the number of hosts.
        batch: samples per rank and step.
        systems: the names of the systems that are measured.
        slow: those that are measured at 10 Mbit/s too, if the plan has this rate. Where others send
            all of a large model's gradients, a step takes up to a minute.
    """

    work: str
    hosts: int
    batch: int
    systems: tuple[str, ...]
    slow: tuple[str, ...] = ()

    def rates(self, name: str, rates: Iterable[str]) -> list[str]:
        """Those of the rates at which a system is measured; the first if there is no exchange."""
        if not SYSTEMS[name].exchanges:
            return list(rates)[:1]
        return [rate for rate in rates if rate != "10mbit" or name in self.slow]

    @property
    def place(self) -> dict[str, str | int]:
        """What results are grouped by."""
        return {"work": self.work, "hosts": self.hosts, "batch": self.batch}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        cells: models and hosts.
        steps: the number of timed steps, by the rate of the links. Short steps vary more, so there
            are more of them.
        rounds: how often each system is launched.
    """

    cells: tuple[Cell, ...]
    steps: Mapping[str, int]
    rounds: int


PLANS = {
    "quick": Plan(
        (Cell("mlp", 2, 64, QUICK_SYSTEMS),), {UNLIMITED: 30, "1gbit": 10, "100mbit": 4}, 2
    ),
    # Where the link decides, systems differ by only one percent, so more rounds are needed.
    "dense": Plan(
        (Cell("mlp", 2, 64, (*DENSE, "horovod", "ddp", *FLOORS)),), {"1gbit": 12, "100mbit": 6}, 6
    ),
    # Compressed steps take a tenth of a second on each link, so noise of the cores matters.
    "compressed": Plan(
        (Cell("mlp", 2, 64, (BEST, "ddp-powersgd", "keras", "torch")),),
        {"1gbit": 25, "100mbit": 25},
        8,
    ),
    "models": Plan(
        (
            Cell("cnn", 2, 16, MODEL_SYSTEMS),
            Cell("transformer", 2, 8, MODEL_SYSTEMS),
            Cell("embedding", 2, 256, MODEL_SYSTEMS),
        ),
        {UNLIMITED: 30, "10gbit": 30, "1gbit": 12, "100mbit": 4},
        2,
    ),
    # The fastest system of tfdist beside the fastest peer: small differences, so many rounds.
    "peers": Plan(
        (
            Cell("cnn", 2, 16, EVERY, RANKED),
            Cell("transformer", 2, 8, EVERY, SMALL),
            Cell("embedding", 2, 256, EVERY, SPARSE),
            Cell("mlp", 2, 64, EVERY, SMALL),
        ),
        {UNLIMITED: 30, "10gbit": 30, "1gbit": 12, "100mbit": 4, "10mbit": 3},
        10,
    ),
    # All codecs on two hosts; weak scaling beyond, then strong: 64 samples for all, 63 with three.
    "scaling": Plan(
        (
            Cell("mlp", 2, 64, CODED),
            Cell("mlp", 3, 64, SCALED),
            Cell("mlp", 4, 64, SCALED),
            Cell("mlp", 2, 32, SCALED),
            Cell("mlp", 3, 21, SCALED),
            Cell("mlp", 4, 16, SCALED),
        ),
        {UNLIMITED: 15, "10gbit": 15, "1gbit": 8, "100mbit": 3},
        2,
    ),
    # For `tfdist plan`: all models on 2 to 4 hosts, also with other batches, and one that has many
    # variables. Its costs are fitted to three small cells.
    "predicted": Plan(
        (
            Cell("mlp", 2, 32, PREDICTED),
            *(Cell("cnn", hosts, 16, PREDICTED) for hosts in (2, 3, 4)),
            *(Cell("transformer", hosts, 8, PREDICTED) for hosts in (2, 3, 4)),
            *(Cell("embedding", hosts, 256, PREDICTED) for hosts in (2, 3, 4)),
            *(Cell("mlp", hosts, 64, PREDICTED) for hosts in (2, 3, 4)),
            Cell("cnn", 2, 32, PREDICTED),
            Cell("transformer", 3, 16, PREDICTED),
            Cell("embedding", 2, 512, PREDICTED),
            Cell("mlp", 3, 32, PREDICTED),
            Cell("variables-1000", 2, 32, PREDICTED),
            Cell("cnn", 4, 8, PREDICTED),
            Cell("transformer", 2, 16, PREDICTED),
            Cell("embedding", 3, 512, PREDICTED),
            Cell("variables-1000", 3, 32, PREDICTED),
        ),
        {UNLIMITED: 20, "10gbit": 20, "1gbit": 10, "100mbit": 4},
        3,
    ),
    # On another machine. Nothing of `tfdist plan` was chosen by the last six models.
    "predicted-again": Plan(
        (
            Cell("mlp", 2, 32, PREDICTED),
            Cell("cnn", 2, 16, PREDICTED),
            Cell("embedding", 2, 256, PREDICTED),
            *(Cell("variables-1000", hosts, 32, PREDICTED) for hosts in (2, 3)),
            Cell("mlp", 2, 128, PREDICTED),
            Cell("mlp", 4, 32, PREDICTED),
            Cell("cnn", 3, 32, PREDICTED),
            Cell("transformer", 4, 16, PREDICTED),
            Cell("embedding", 2, 1024, PREDICTED),
            Cell("variables-10", 3, 32, PREDICTED),
            Cell("mlp", 3, 96, PREDICTED),
            Cell("cnn", 4, 32, PREDICTED),
            Cell("transformer", 2, 32, PREDICTED),
            Cell("embedding", 4, 128, PREDICTED),
            Cell("variables-10", 2, 64, PREDICTED),
            Cell("variables-1000", 4, 64, PREDICTED),
        ),
        {UNLIMITED: 20, "10gbit": 20, "1gbit": 10, "100mbit": 4},
        1,
    ),
    # The number of steps to a loss does not depend on the link. It is counted on the first link,
    # which is the fastest.
    "target": Plan(
        (Cell("digits", 2, 32, MULTIPLE), Cell("characters", 2, 8, MULTIPLE)),
        {UNLIMITED: 190, "10gbit": 10, "1gbit": 5, "100mbit": 4},
        1,
    ),
    # What an exchange adds to a step is a small difference, so more steps are needed.
    "variables": Plan(
        tuple(Cell(f"variables-{count}", 2, 32, COUNTED) for count in VARIABLES),
        {UNLIMITED: 40, "1gbit": 20},
        4,
    ),
}
