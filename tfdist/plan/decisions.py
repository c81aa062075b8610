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
        "there is nothing to exchange; `tfdist plan` says whether more devices would help, with a "
        "mean error of 6.5 % in the steps of 144 configurations to which nothing was fitted",
        "planning",
    ),
    Decision(
        "fits", "one machine", ANY, "equal", "stable", 'tfdist.Strategy("mirrored")',
        "exact; a step of 0.646 ms where TensorFlow's own strategy takes 0.832 ms (2 replicas, 10 "
        "variables)", "performance",
    ),
    Decision(
        "fits", "one machine", ANY, ANY, "preemptible",
        'keras.callbacks.BackupAndRestore("backup")',
        "exact, if the data come in the same order; the ranks go with the machine, so the job is "
        "started again, and goes on from its last whole backup. Not measured: how long that takes "
        "depends on the steps since the backup", "faults",
    ),
    Decision(
        "fits", "several machines", "fast", "equal", "stable",
        'tfdist.Strategy("multi_worker")',
        "exact; two hosts, 10 million parameters at 1 Gbit/s: a step of 387 ms where TensorFlow's "
        "own strategy takes 532 ms; `horovod` takes 395 ms: take the one that your cluster starts "
        "easily", "performance",
    ),
    Decision(
        "fits", "several machines", "slow", "equal", "stable",
        'tfdist.Strategy("horovod", compression="powersgd")',
        "not exact; 10 million parameters at 100 Mbit/s: a step of 106 ms instead of 3492 ms",
        "performance",
    ),
    Decision(
        "fits", "several machines with several devices", "slow", "equal", "stable",
        'tfdist.Strategy("multi_worker", exchange="hierarchical")',
        "exact; two hosts with two replicas each: 1677 ms instead of 2536 ms at 100 Mbit/s",
        "exchange_algorithms",
    ),
    Decision(
        "fits", "several sites", ANY, "equal", "stable",
        'tfdist.Strategy("multi_worker", local=tfdist.LocalSGD(64), '
        'compression=tfdist.compression.QSGD(7, norm="max", error_feedback=True))',
        "not exact; the replicas meet once in 64 updates: 91.8 ms instead of 3780.9 ms at 100 "
        "Mbit/s with 50 ms each way; the loss of a small model was 1.021 times that of synchronous "
        "training", "local_steps",
    ),
    Decision(
        "fits", ANY, ANY, "some slower for good", "stable",
        'tfdist.Strategy("multi_worker", balance=True)',
        "exact; one of three ranks 3 times slower: a step of 185 ms instead of 400 ms", "balance",
    ),
    Decision(
        "fits", ANY, ANY, "slow now and then", "stable",
        'tfdist.Strategy("parameter_server", staleness=tfdist.staleness.Synchronous(backup=True))',
        "exact; idle workers compute what others are late with: 159 ms instead of 344 ms with one "
        "of four workers 5 times slower. How much it helps with other times can be simulated",
        "parameter_server",
    ),
    Decision(
        "fits", ANY, ANY, "very unequal", "stable",
        'tfdist.Strategy("parameter_server", staleness=tfdist.staleness.InverseLR())',
        "not exact; nobody waits: 3.76 times the gradients per second of synchronous training with "
        "one of four workers 5 times slower", "asynchronous",
    ),
    Decision(
        "fits", "several machines", "fast", ANY, "preemptible",
        "tfdist run -n 2 --min 2 --max 8 --rendezvous HOST:PORT train.py",
        "exact; ranks may die and new ones join: the step is repeated. A step of 93 ms where a "
        "group that cannot change takes 81 ms", "elastic",
    ),
    Decision(
        "fits", "several machines", "slow", ANY, "preemptible",
        'tfdist.Strategy("multi_worker", local=tfdist.LocalSGD(32))',
        "not exact; under `tfdist run --min` a rank that is lost takes 32 updates along at most: "
        "166.5 ms instead of 3414.1 ms at 100 Mbit/s (two hosts that stay); the loss of a small "
        "model was 1.019 times that of synchronous training", "local_steps",
    ),
    Decision(
        "fits but for the optimizer's state", "one", ANY, ANY, ANY,
        'tfdist.Strategy("mirrored", sharding="optimizer", offload="optimizer")',
        "exact; for a GPU: the state is in the memory of the host, and the update runs there. Not "
        "measured: it was never run on a GPU", "sharding",
    ),
    Decision(
        "fits but for the optimizer's state", ANY, ANY, ANY, "stable",
        'tfdist.Strategy("multi_worker", sharding="optimizer")',
        "exact; 2 ranks: 16.7 bytes per weight instead of 22.4; 4 ranks: 15.2 instead of 23.3 "
        "bytes, and a step of 1222 ms instead of 1242 ms; 2 ranks at 1 Gbit/s: 1805 ms instead of "
        "1766 ms. `tfdist plan --memory 16GB` says how many replicas it takes. With "
        "unequal machines `balance=True` too", "sharding",
    ),
    Decision(
        "does not fit", "one", ANY, ANY, ANY,
        'tfdist.Strategy("mirrored", accumulation_steps=4)',
        "exact; a step has a quarter of the batch, and so of the activations: a step of five "
        "convolutions took 250 MB with 64 samples, and 899 MB with 256. Beside that a gradient of "
        "each weight waits. Weights that do not fit need more devices", "memory",
    ),
    Decision(
        "does not fit", ANY, "fast", ANY, "stable",
        'tfdist.Strategy("multi_worker", sharding="parameters")',
        "exact; 2 ranks: 13.5 bytes per weight instead of 22.4, and a step of 746 ms instead of "
        "550 ms; 4 ranks: 9.3 bytes instead of 23.3, and 1287 ms instead of 1242 ms",
        "sharding",
    ),
    Decision(
        "does not fit", ANY, "slow", ANY, "stable",
        'tfdist.Strategy("multi_worker", sharding="parameters")',
        "exact, and slow: nothing hides up to 1.5 times the bytes of an all-reduce. Two ranks at "
        "1 Gbit/s: a step of 2610 ms, where whole weights take 1766 ms. Put as many devices into "
        "one machine as you can", "sharding",
    ),
    Decision(
        "does not fit", ANY, ANY, ANY, "preemptible",
        'keras.callbacks.BackupAndRestore("backup")',
        "exact, if the data come in the same order; with what the row for stable machines says. "
        "Elastic jobs refuse `sharding`, so the job is started again, and goes on from its last "
        "whole backup. Not measured: how long that takes depends on the steps since the backup",
        "faults",
    ),
    Decision(
        "does not fit, a chain of layers", "one machine", ANY, ANY, "stable",
        "tfdist.pipeline.stages(model, devices)",
        "exact; two stages: 16.8 MB of weights on each instead of 33.6 MB, and a step of 77 ms "
        "instead of 97 ms with 2 micro-batches; only the activations between two stages travel",
        "model_parallel",
    ),
    Decision(
        "one layer does not fit", "one", ANY, ANY, ANY,
        "tfdist plan train.py --memory 16GB --bandwidth 10Gbit/s",
        "a layer is divided among several devices only: the plan says how much memory one needs, "
        "with a mean error of 11 % in the steps of six models on one device", "memory",
    ),
    Decision(
        "one layer does not fit", "one machine", ANY, ANY, "stable",
        "tfdist.tensor_parallel.FeedForward(hidden, units, mesh)",
        "exact; two ranks: 16.8 MB of weights on each instead of 33.6 MB, and a step of 140 ms "
        "instead of 104 ms: it saves memory, not time. A whole layer must fit the host's memory "
        "while it is built", "model_parallel",
    ),
    Decision(
        "one layer does not fit", "several machines", ANY, ANY, "stable",
        'tfdist.tensor_parallel.Mesh({"data": machines, "model": ranks of each})',
        "exact; the ranks of a machine divide the layer, and machines divide the batch: between "
        "them travel the gradients of each rank's parts. Not measured: the benchmark has one "
        "machine",
        "model_parallel",
    ),
    Decision(
        "one layer does not fit", ANY, ANY, ANY, "preemptible",
        'mesh.save_weights(model, "model.weights.h5")',
        "all ranks call it, such as at the end of an epoch, and start again with these weights; "
        "the optimizer begins anew, as its state is not written. Not measured: how long a file "
        "takes depends on the disk", "model_parallel",
    ),
    Decision(
        "does not fit, a large embedding", ANY, ANY, ANY, ANY,
        'tfdist.Strategy("parameter_server", variable_partitioner=...)',
        "a step reads the rows that it uses only: 361 kB travel for a step with a table of 102 MB "
        "in two parts, with SGD", "partitioned",
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
