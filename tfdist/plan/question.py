"""A question of `tfdist plan`, and its answer; needs TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.plan import candidates, models, refusals, scripts, table, trained
from tfdist.plan.candidate import Candidate
from tfdist.plan.machine import INSIDE, Cluster, Machines, link_of, read_cluster
from tfdist.plan.prediction import Planner, Prediction

_LATENCY = 5e-5
_WORKERS = (1, 2, 4, 8, 16, 32)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        model: the path of a model.keras, or of a script.
        arguments: of the script.
        batch_size: samples of each worker in a step; None for the script's own.
        cluster: the path of what `tfdist test --json` has written; None if there is none.
        bandwidth: of a host's link, in bytes per second; None for the cluster's.
        latency: seconds of an empty message; None for the cluster's, or 50 us.
        per_host: the workers of each host; None for the cluster's, or 1.
        device_step: seconds of a step on one device; None for the cluster's, or to measure it.
        device: "cpu" or "gpu"; None for the cluster's with a known step, or what this machine has.
        workers: numbers of workers; None for some up to 32, or up to the cluster's.
        strong: whether the batch is divided among the workers.
        servers: the number of parameter servers.
        reducers: the number of further machines that could be reducers.
        samples: of an epoch; None for those of the script's `fit`, if they are known.
        price: of a machine for an hour; None if it is not known.
        memory: the bytes of a device; None for no bound.
        efficiency: to which part workers must be used that are recommended.
    """

    model: str
    arguments: Sequence[str] = ()
    batch_size: int | None = None
    cluster: str | None = None
    bandwidth: float | None = None
    latency: float | None = None
    per_host: int | None = None
    device_step: float | None = None
    device: str | None = None
    workers: Sequence[int] | None = None
    strong: bool = False
    servers: int = 1
    reducers: int = 0
    samples: int | None = None
    price: float | None = None
    memory: float | None = None
    efficiency: float = 0.5

    @property
    def epoch(self) -> table.Epoch:
        """What an epoch costs."""
        return table.Epoch(self.samples, self.price)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is predicted.

    Attributes:
        question: what was asked.
        notes: what was done and assumed, for people.
        alone: one device.
        predictions: all choices, for all numbers of workers.
        advice: what to do.
    """

    question: Question
    notes: list[str]
    alone: Prediction
    predictions: list[Prediction]
    advice: candidates.Recommendation

    def shown(self) -> list[Prediction]:
        """The usual choices, and the best one for each number of workers."""
        counts = {p.workers for p in self.predictions}
        best = [
            candidates.best([p for p in self.predictions if p.workers == n], self.question.memory)
            for n in counts
        ]
        found = [p for p in self.predictions if candidates.is_short(p.candidate) or p in best]
        return [self.alone, *found]


def answer(question: Question) -> Answer:
    """Reads the model, and predicts.

    Args:
        question: what is asked.

    Raises:
        ValueError: when the model or the cluster cannot be read, or the link is not known; for more
            workers than samples with `strong`, and for devices of another kind than those on which
            steps run here.
    """
    known = None if question.cluster is None else read_cluster(question.cluster)
    machines, asked = _machines(question, known), _asked(question, known)
    _check_link(question, known, machines, max(asked))
    step = question.device_step or (known.device_step if known else None)
    device = question.device or (known.device if known and step else None)
    found = models.read(question.model, question.arguments, question.batch_size, step, device)
    question, of_epoch = _with_samples(question, found.samples)
    machines = dataclasses.replace(machines, costs=found.costs, shares_cores=found.uses_cores)
    counts = _possible(asked, question, found.device.batch)
    planner = Planner(
        found.workload, found.messages, found.device, machines, question.strong, question.servers
    )
    choices, refused = _choices(question, found, machines, counts)
    predictions = [planner.predict(candidate, count) for candidate, count in choices]
    alone = planner.alone()
    advice = candidates.recommend(
        alone, predictions, question.efficiency, question.memory, question.samples
    )
    few = candidates.with_few_updates(alone, predictions, question.samples)
    notes = [*found.notes, *of_epoch, *_notes(question, planner), *refused]
    notes += _left_out(question, asked, counts, few)
    notes += _few_alone(question, alone)
    return Answer(question, notes, alone, predictions, advice)


def _with_samples(question: Question, found: scripts.Samples | None) -> tuple[Question, list[str]]:
    """The question with the samples of an epoch, and notes of where they come from."""
    if question.samples is None and found is not None:
        note = (
            f"An epoch has {found.number:,} samples, by what the script gives to `fit` "
            f"({found.source}): give --samples for another number."
        )
        return dataclasses.replace(question, samples=found.number), [note]
    if question.samples is None and question.price is not None:
        note = (
            "How many samples an epoch has is not known, so the cost is that of a million samples: "
            "give --samples for that of an epoch."
        )
        return question, [note]
    return question, []


def _choices(
    question: Question, found: models.Found, machines: Machines, counts: Sequence[int]
) -> tuple[list[tuple[Candidate, int]], list[str]]:
    """What is compared, each with a number of workers, and notes of what is not."""
    choices: list[tuple[Candidate, int]] = []
    refused: dict[tuple[str, str], list[int]] = {}
    for count in counts:
        for candidate in candidates.candidates(count, machines, question.reducers, found.on_gpus):
            if any(kind in candidate.kinds for kind in found.refused):
                continue
            if refusal := refusals.of_choice(candidate, count, found.workload):
                refused.setdefault(refusal, []).append(count)
                continue
            choices.append((candidate, count))
    notes = []
    for (option, reason), numbers in refused.items():
        some, every = ({n for n in of if n > 1} for of in (numbers, counts))
        where = "" if some == every else f" with {_listed(sorted(some))} workers"
        notes.append(f"Left out: {option}{where}, as {reason}.")
    if machines.per_host > 1 and not found.on_gpus:
        notes.append(
            "Left out: mirrored, as it has one replica on CPUs. Start as many processes on a host "
            "as it has workers: `tfdist run -n`."
        )
    return choices, notes


def _machines(question: Question, known: Cluster | None) -> Machines:
    per_host = question.per_host or (known.per_host if known else 1)
    of_one_host = known is not None and known.is_one_host
    inside = known.link if known and of_one_host else INSIDE
    if question.bandwidth is not None:
        latency = known.link.alpha if known and not of_one_host else _LATENCY
        return Machines(link_of(question.bandwidth, question.latency or latency), per_host, inside)
    if known is None:
        raise ValueError(
            "The rate of the link decides, and is not known: give --cluster with what "
            "`tfdist test --json` has written, or --bandwidth, such as 1Gbit/s. "
            "Received: neither --cluster nor --bandwidth"
        )
    link = dataclasses.replace(known.link, alpha=question.latency or known.link.alpha)
    return Machines(link, per_host, link if of_one_host else INSIDE)


def _check_link(
    question: Question, known: Cluster | None, machines: Machines, workers: int
) -> None:
    """Raises ValueError if the link between hosts decides, and only that of one host is known."""
    if known is None or not known.is_one_host or question.bandwidth is not None:
        return
    if machines.hosts(workers) > 1 or question.reducers:
        raise ValueError(
            "The file of the cluster is that of one host, so it has no link between hosts: give "
            "--bandwidth too, or ask about workers of one host only, without reducers. "
            f"Received: {workers} workers, {machines.per_host} on each host, {question.reducers} "
            "reducers"
        )


def _asked(question: Question, known: Cluster | None) -> list[int]:
    if question.workers is None and known is not None:
        return sorted({*(n for n in _WORKERS if n < known.ranks), known.ranks})
    return list(question.workers or _WORKERS)


def _possible(counts: Sequence[int], question: Question, batch: int) -> list[int]:
    possible = [count for count in counts if not question.strong or count <= batch]
    if not possible:
        raise ValueError(
            f"With --strong the batch of {batch} samples is divided among the workers, and each "
            f"needs one at least. Received: --workers {','.join(map(str, counts))}"
        )
    return possible


def _left_out(
    question: Question, asked: Sequence[int], counts: Sequence[int], few: Sequence[int]
) -> list[str]:
    """Which numbers of workers have no rows, and which have rows but are not recommended."""
    notes = []
    if missing := [n for n in asked if n not in counts]:
        notes.append(
            f"Left out: {_listed(missing)} workers, as --strong divides one batch among them, and "
            "each needs a sample at least."
        )
    if few:
        notes.append(
            f"Not recommended: {_listed(few)} workers, as an epoch of {question.samples:,} samples "
            f"has less than {candidates.UPDATES} updates with them."
        )
    return notes


def _few_alone(question: Question, alone: Prediction) -> list[str]:
    """A note if one device makes few updates, too."""
    needed = candidates.UPDATES * alone.samples_per_update
    if question.samples is None or question.samples >= needed:
        return []
    return [
        f"Also on one device an epoch of {question.samples:,} samples has less than "
        f"{candidates.UPDATES} updates, with which a model hardly learns. So only those numbers of "
        "workers are not recommended that make fewer."
    ]


def _listed(numbers: Sequence[int]) -> str:
    """Numbers for people; of many, the first ones and the last one."""
    shown = [str(number) for number in numbers]
    return ", ".join(shown if len(shown) <= 6 else [*shown[:4], "...", shown[-1]])


def _notes(question: Question, planner: Planner) -> list[str]:
    batch = "samples for all workers" if question.strong else "samples of each worker"
    machines, workload = planner.machines, planner.workload
    link = machines.link
    which = "between workers of a host" if link == machines.inside else "of a host"
    notes = [
        f"A step has {planner.device.batch} {batch}; a device takes "
        f"{table.duration(planner.device.step)} for them.",
        f"Link {which}: {8e-9 / link.beta:.3g} Gbit/s of gradients, {1e6 * link.alpha:.3g} us; "
        f"workers on each host: {machines.per_host}.",
        "Memory is what `tfdist.memory.estimate` counts, and what compression and local steps keep "
        f"(activations: {table.size(workload.activation_bytes)} for {workload.batch} samples); not "
        "that of TensorFlow itself.",
        "The loss of local steps was measured: of a small character model after 320 updates, by "
        "that of synchronous training (docs/local_steps.md); LocalSGD(8) has that of 32 updates. "
        f"Those with more than {trained.MOST_LOSS} are not recommended.",
        "Of the policies of parameter_server only Synchronous() is compared with none: what others "
        "bring depends on how much workers differ (docs/asynchronous.md).",
    ]
    if machines.shares_cores and machines.per_host > 1:
        notes.append(
            "The steps ran on all cores, which the workers of a host share: several workers "
            "compute as many times as long as one. Give --device-step if each has cores of its own."
        )
    return notes
