"""What the report says at its top: how far the run is, and what is worth knowing of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tfdist.watch import curves, texts
from tfdist.watch.numbers import Run

PARTS = {
    "compute": "computing",
    "exchange": "exchange that is not hidden",
    "update": "update",
    "data": "waiting for data, with the call",
    "between": "between steps",
    "rest": "the rest of the step",
}
"""What the parts of a step are called."""


def state(run: Run) -> str:
    """How far the run is."""

    def clock(seconds: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

    count = len(run.epochs)
    done = f"{count} epoch{'' if count == 1 else 's'}"
    if run.epochs and run.wanted is not None and not run.has_ended:
        done = f"Epoch {run.epochs[-1].number + 1} of {run.wanted} is done"
    last = run.epochs[-1].ended if run.epochs else run.began
    if run.has_ended:
        end = f"Ended after {texts.duration(last - run.began)}."
    else:
        end = f"Had not ended when this was written, at {clock(last)}."
    return f"{done}. Begun at {clock(run.began)}. {end}"


def found(run: Run) -> Iterator[str]:
    """What is worth knowing of the run, and of its last epoch."""
    yield from _not_finite(run)
    if run.earlier:
        times = "a `fit`" if run.earlier == 1 else f"{run.earlier} calls of `fit`"
        yield f"Only the last `fit` is shown: the callback has seen {times} before."
    if not run.epochs:
        yield "There was no epoch." if run.has_ended else "The first epoch has not ended yet."
        return
    last = run.epochs[-1]
    slowest, step = last.slowest(), last.step_seconds()
    if slowest is not None and step is not None:
        cost = slowest.waiting * step
        yield f"{slowest} That is {texts.milliseconds(cost)} of {texts.milliseconds(step)}."
    parts = last.mean_parts()
    if step is not None and parts:
        largest = max(parts, key=lambda name: parts[name])
        share = parts[largest] / step
        yield f"The largest part of a step is {PARTS[largest]}: {share:.0%}, on average."
    if last.traffic is not None and last.traffic.sent != last.traffic.dense:
        sent, dense = texts.size(last.traffic.sent), texts.size(last.traffic.dense)
        ratio = last.traffic.dense / max(1, last.traffic.sent)
        yield (
            f"A replica sends {sent} for an update; without compression it would be {dense}, "
            f"{ratio:.1f} times as much."
        )
    samples = [(r.samples, r.seconds) for r in last.measured().values() if r.samples]
    if samples:
        speed = sum(count / seconds for count, seconds in samples)
        yield f"{speed:,.0f} samples per second, by all ranks together."


def _not_finite(run: Run) -> Iterator[str]:
    """Which of loss and metrics are no numbers any more."""
    found: dict[str, list[str]] = {}
    for name in curves.of_training(run):
        if since := curves.not_finite_since(curves.series(run, name)):
            found.setdefault(since, []).append(name)
    for since, names in found.items():
        yield f"{', '.join(names)}: {since}."
