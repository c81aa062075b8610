"""What is measured: the jobs of each part, and the timed steps of each system."""

from __future__ import annotations

import argparse
import itertools
from typing import NamedTuple

from benchmarks.common import runner
from benchmarks.local_sgd.choices import CHOICES, DENSE, DILOCO, TIMED
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.systems import LOCAL, OWN, PEERS_TORCH, SYSTEMS

STEP_TIME, PEERS, LOSS = PARTS = ("step_time", "peers", "loss")
BACKENDS = ("multi_worker", "horovod")
TASKS = ("char_lm", "digits")
HOSTS = 2
# The model of the step times, and the samples of each host.
WORK, BATCH = "mlp", 64
# By where the frameworks of systems are installed: one device, without any communication.
ALONE = {OWN: "keras", PEERS_TORCH: "torch"}
TORCH = [name for name, system in LOCAL.items() if system.environment == PEERS_TORCH]
RATES = ("100mbit", "100mbit+50ms", "10mbit")
# The systems of the peers run in so many rounds at most, as no goal needs more.
PEER_ROUNDS = 2
# A dense exchange sends so many bytes. On a link where that takes longer, it is left out; and
# there are fewer rounds where many of them would.
DENSE_BYTES = 40e6
LONGEST_EXCHANGE, LONGEST_EXCHANGES = 20.0, 16.0


class Job(NamedTuple):
    """One launch.

    Attributes:
        part: `STEP_TIME`, also for the part of the peers, or `LOSS`.
        system: a key of `SYSTEMS` for step times, of `CHOICES` for losses.
        task: the model.
        number: of the round, or the seed.
    """

    part: str
    system: str
    task: str
    number: int

    @property
    def title(self) -> str:
        """What the job measures, in words."""
        titles = CHOICES if self.part == LOSS else SYSTEMS
        kind = "seed" if self.part == LOSS else "round"
        return f"{self.task}, {titles[self.system].title}, {kind} {self.number}"


def own(backend: str, choice: str) -> str:
    """The system that trains with a choice."""
    return f"local-{backend}-{choice}"


def systems(parts: list[str], arguments: argparse.Namespace) -> list[str]:
    """The systems whose steps are timed for these parts, in their order.

    Args:
        parts: some of `PARTS`.
        arguments: of the command line.
    """
    names = []
    if STEP_TIME in parts:
        names += [ALONE[OWN]]
        names += [own(arguments.backend, choice) for choice in arguments.choices if choice in TIMED]
    if PEERS in parts:
        names += [ALONE[OWN], *(own(arguments.backend, choice) for choice in (DENSE, DILOCO))]
        names += [ALONE[PEERS_TORCH], *TORCH]
    return list(dict.fromkeys(names))


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """All jobs, in their order."""
    found = []
    for number in range(arguments.rounds):
        parts = [p for p in arguments.parts if p != PEERS or number < PEER_ROUNDS]
        for name in runner.order(systems(parts, arguments), number):
            found.append(Job(STEP_TIME, name, WORK, number))
    if LOSS in arguments.parts:
        places = itertools.product(range(arguments.seeds), arguments.tasks, arguments.choices)
        found += [Job(LOSS, choice, task, seed) for seed, task, choice in places]
    return found


def every(name: str) -> int:
    """The number of steps from one exchange to the next."""
    return (SYSTEMS[name].options.get("local") or {"steps": 1})["steps"]


def timed_steps(name: str, rate: str, least: int) -> int:
    """How many steps of a system are timed on a link: some whole rounds; 0 for none.

    Args:
        name: of the system.
        rate: a key of `LINKS`.
        least: how many steps are wanted.
    """
    rounds = max(1, least // every(name))
    if name in ALONE.values() or SYSTEMS[name].options.get("compression"):
        return rounds * every(name)
    exchange = DENSE_BYTES / LINKS[rate].bytes_per_second
    if exchange > LONGEST_EXCHANGE:
        return 0
    return min(rounds, max(1, int(LONGEST_EXCHANGES / exchange))) * every(name)
