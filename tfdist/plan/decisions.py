"""Which strategy for which situation: the one table that the command and the docs show."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Decision:
    """A situation, and what to write there.

    Attributes:
        model: whether the model fits on one device.
        place: where the devices are.
        link: how fast they are linked.
        machines: whether they are equally fast.
        stable: whether they stay.
        code: what to write.
        why: what decides, with what was measured.
        page: the page of the docs.
    """

    model: str
    place: str
    link: str
    machines: str
    stable: str
    code: str
    why: str
    page: str

    @property
    def situation(self) -> tuple[str, ...]:
        """The five answers."""
        return self.model, self.place, self.link, self.machines, self.stable


HEAD = ("model:", "devices:", "link:", "machines:", "they are:")
ANY = "any"

DECISIONS = (
    Decision(
        "fits", "one", ANY, ANY, ANY, "plain Keras",
        "there is nothing to exchange; `tfdist plan` says whether more devices would help",
        "planning",
    ),
    Decision(
        "fits", "one machine", ANY, "equal", "stable", 'tfdist.Strategy("mirrored")',
        "exact; a step of 0.646 ms where TensorFlow's own strategy takes 0.832 ms (2 replicas, 10 "
        "variables)", "performance",
    ),
    Decision(
        "fits", "several machines", "fast", "equal", "stable",
        'tfdist.Strategy("multi_worker")',
        "exact; `horovod` sends the same bytes: take the one that your cluster starts easily",
        "multi_process",
    ),
    Decision(
        "fits", "several machines", "slow", "equal", "stable",
        'tfdist.Strategy("horovod", compression="powersgd")',
        "not exact; 10 million parameters at 100 Mbit/s: a step of 131 ms instead of 3490 ms",
        "performance",
    ),
    Decision(
        "fits", "several machines with several devices", "slow", "equal", "stable",
        'tfdist.Strategy("multi_worker", exchange="hierarchical")',
        "exact; two hosts with two replicas each: 1677 ms instead of 2536 ms at 100 Mbit/s",
        "exchange_algorithms",
    ),
    Decision(
        "fits", "several sites", "very slow", "equal", "stable",
        'tfdist.Strategy("horovod", local=tfdist.DiLoCo(32))',
        "not exact; the replicas meet once in 32 updates", "local_steps",
    ),
    Decision(
        "fits", "several machines", ANY, "some slower for good", "stable",
        'tfdist.Strategy("multi_worker", balance=True)',
        "exact; one of three ranks 3 times slower: a step of 185 ms instead of 400 ms", "balance",
    ),
    Decision(
        "fits", "several machines", ANY, "slow now and then", "stable",
        'tfdist.Strategy("parameter_server", staleness=tfdist.staleness.Synchronous(backup=True))',
        "exact; idle workers compute what others are late with: 159 ms instead of 344 ms with one "
        "of four workers 5 times slower", "parameter_server",
    ),
    Decision(
        "fits", "several machines", ANY, "very unequal", "stable",
        'tfdist.Strategy("parameter_server", staleness=tfdist.staleness.InverseLR())',
        "not exact; nobody waits: 3.51 times the gradients per second of synchronous training with "
        "one of four workers 5 times slower", "asynchronous",
    ),
    Decision(
        "fits", "several machines", "fast", ANY, "preemptible",
        "tfdist run -n 2 --min 2 --max 8 --rendezvous HOST:PORT train.py",
        "exact; ranks may die and new ones join: the step is repeated", "elastic",
    ),
    Decision(
        "fits but for the optimizer's state", ANY, "fast", "equal", "stable",
        'tfdist.Strategy("multi_worker", sharding="optimizer")',
        "exact; as many bytes as an all-reduce, and each replica keeps its part of the optimizer's "
        "state; `tfdist plan --memory 16GB` says how many replicas it takes", "sharding",
    ),
    Decision(
        "does not fit", ANY, "fast", "equal", "stable",
        'tfdist.Strategy("multi_worker", sharding="parameters")',
        "exact; 1.5 times the bytes of an all-reduce, and each replica keeps its part of weights, "
        "gradients and the optimizer's state", "sharding",
    ),
    Decision(
        "does not fit, a chain of layers", "one machine", ANY, "equal", "stable",
        "tfdist.pipeline.stages(model, devices)",
        "exact; only the activations between two stages travel, and each device keeps the weights "
        "and the optimizer's state of its stage", "model_parallel",
    ),
    Decision(
        "one layer does not fit", "one machine", "fast", "equal", "stable",
        "tfdist.tensor_parallel.FeedForward(hidden, units, mesh)",
        "exact; each rank keeps its part of the layer and computes with it; activations are summed "
        "in each such layer; a whole layer must fit the host's memory while it is built",
        "model_parallel",
    ),
    Decision(
        "one layer does not fit", "several machines", "fast inside machines", "equal", "stable",
        'tfdist.tensor_parallel.Mesh({"data": machines, "model": ranks of each})',
        "exact; the ranks of a machine divide the layer, and machines divide the batch: between "
        "them travel the gradients of each rank's parts", "model_parallel",
    ),
    Decision(
        "does not fit: a large embedding", "several machines", ANY, ANY, ANY,
        'tfdist.Strategy("parameter_server", variable_partitioner=...)',
        "a step reads the rows that it uses only", "partitioned",
    ),
)  # fmt: skip


def table() -> list[list[str]]:
    """The head and the rows of the table in the docs, in Markdown."""
    head = [*(question.rstrip(":") for question in HEAD), "write", "why, and what was measured"]
    return [head, *([*one.situation, f"`{one.code}`", _linked(one)] for one in DECISIONS)]


def _linked(one: Decision) -> str:
    return f"{one.why} ([{one.page.replace('_', ' ')}]({one.page}.md))"


def as_text() -> list[str]:
    """The table for a terminal: each situation, and below it what to write and why."""
    lines: list[str] = []
    for one in DECISIONS:
        answers = zip(HEAD, one.situation)
        lines += [
            "; ".join(f"{question} {answer}" for question, answer in answers if answer != ANY),
            f"    {one.code}",
            f"    {one.why} (docs/{one.page}.md)",
        ]
    return lines
