"""Which strategy for which situation: the one table that the command and the docs show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


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


HEAD = ("the model", "devices", "link", "machines", "they are")
ANY = "any"

DECISIONS = (
    Decision(
        "fits", "one", ANY, ANY, ANY, "plain Keras",
        "there is nothing to exchange; `tfdist plan` says whether more would help", "planning",
    ),
    Decision(
        "fits", "one machine", ANY, "equal", "stable", 'tfdist.Strategy("mirrored")',
        "replicas sum in the memory that they share: 0.65 ms a step with 10 variables, where "
        "TensorFlow's strategy takes 0.83 ms", "performance",
    ),
    Decision(
        "fits", "several machines", "fast", "equal", "stable",
        'tfdist.Strategy("multi_worker"), or "horovod"',
        "the exchange hides behind the backward pass: both send the same bytes", "multi_process",
    ),
    Decision(
        "fits", "several machines", "slow", "equal", "stable",
        'tfdist.Strategy("horovod", compression="powersgd")',
        "10 million parameters at 100 Mbit/s: a step of 0.13 s instead of 3.5 s; not exact",
        "compression",
    ),
    Decision(
        "fits", "several machines with several devices", "slow", "equal", "stable",
        'tfdist.Strategy("multi_worker", exchange="hierarchical")',
        "exact; two hosts with two replicas each send 1.0 instead of 1.5 models",
        "exchange_algorithms",
    ),
    Decision(
        "fits", "several sites", "very slow", "equal", "stable",
        "tfdist.Strategy(..., local=tfdist.DiLoCo(32))",
        "one exchange in 32 updates; not exact", "local_steps",
    ),
    Decision(
        "fits", "several machines", ANY, "some slower for good", "stable",
        "tfdist.Strategy(..., balance=True)",
        "exact; one of two ranks 3 times slower: a step of 60 instead of 112 ms", "balance",
    ),
    Decision(
        "fits", "several machines", ANY, "slow now and then", "stable",
        'tfdist.Strategy("parameter_server", staleness=tfdist.staleness.Synchronous(backup=True))',
        "exact; idle workers compute what others are late with", "parameter_server",
    ),
    Decision(
        "fits", "several machines", ANY, "very unequal", ANY,
        'tfdist.Strategy("parameter_server", staleness=tfdist.staleness.InverseLR())',
        "nobody waits: 3.5 times the gradients per second with one of four workers 5 times slower; "
        "not exact", "asynchronous",
    ),
    Decision(
        "fits", "several machines", "fast", ANY, "preemptible",
        "tfdist run --min 2 --max 8 train.py",
        "exact; ranks may leave and join, and steps are repeated", "elastic",
    ),
)  # fmt: skip


def rows(code: str = "`", link: str = "{why} ({page})") -> list[list[str]]:
    """The cells of the table.

    Args:
        code: what stands around code.
        link: how the last cell is made of `why` and `page`.
    """
    quoted = lambda text: f"{code}{text}{code}" if "tfdist" in text else text  # noqa: E731
    return [
        [*one.situation, quoted(one.code), link.format(why=one.why, page=one.page)]
        for one in DECISIONS
    ]


def as_text() -> list[str]:
    """The table for a terminal: each situation, and below it what to write and why."""
    lines: list[str] = []
    for one in DECISIONS:
        answers: Sequence[str] = [
            f"{question} {answer}" for question, answer in zip(HEAD, one.situation) if answer != ANY
        ]
        lines += [", ".join(answers), f"    {one.code}", f"    {one.why} (docs: {one.page})"]
    return lines
