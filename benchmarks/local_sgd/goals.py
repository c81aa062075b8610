"""The goals of local steps, with what was measured and a verdict."""

from __future__ import annotations

import math
import statistics

from benchmarks.common import tables
from benchmarks.local_sgd import plan
from benchmarks.local_sgd.choices import CHOICES, POST_LOCAL
from benchmarks.local_sgd.found import Found
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.systems import OWN

# By rate, the mean step of two hosts by that of one device without any communication.
STEP_BOUNDS = {"100mbit": 1.05, "10mbit": 1.10, "100mbit+50ms": 1.15}
# Losses by that of synchronous training at equal samples.
POST_LOCAL_BOUND, CODED_BOUND, TIMES_FEWER = 1.005, 1.03, 200
# The fastest choice may lose much in this task. So there is a second row of one that does not.
TASK = "char_lm"
HEAD = ["goal", "tfdist", "bound", "measured", "loss", "reached"]


def table(found: Found, backend: str) -> list[str]:
    """The goals that these measurements can show."""
    rows = []
    for rate, bound in STEP_BOUNDS.items():
        goals = {
            f"step on {LINKS[rate].title}, by one device": math.inf,
            f"the same, with a loss of at most {CODED_BOUND} ×": CODED_BOUND,
        }
        choices = {goal: best(found, backend, rate, most) for goal, most in goals.items()}
        for place, (goal, choice) in enumerate(choices.items()):
            if choice is None or choice in [*choices.values()][:place]:
                continue
            ratios = found.ratios(plan.own(backend, choice), plan.ALONE[OWN], rate)
            rows.append(_row(goal, choice, bound, ratios, found.loss_ratios(TASK, choice)))
    for task in found.tasks():
        goal = f"loss of {task}, by synchronous training"
        rows += _least_loss(found, task, POST_LOCAL, goal, POST_LOCAL_BOUND)
        coded = [c for c in CHOICES if (found.fewer(task, c) or 0) >= TIMES_FEWER]
        goal = f"the same, with {TIMES_FEWER} × fewer bytes"
        rows += _least_loss(found, task, coded, goal, CODED_BOUND)
    return tables.table(HEAD, rows, "ttnnnt")


def _least_loss(
    found: Found, task: str, choices: list[str], goal: str, bound: float
) -> list[list[str]]:
    """The row of the choice with the least loss; none if no loss is known."""
    losses = {choice: found.loss_ratios(task, choice) for choice in choices}
    known = {choice: ratios for choice, ratios in losses.items() if ratios}
    if not known:
        return []
    choice = min(known, key=lambda c: statistics.median(known[c]))
    return [_row(goal, choice, bound, known[choice], known[choice])]


def best(found: Found, backend: str, rate: str, most: float) -> str | None:
    """The choice with the shortest step, of those whose loss is not known or at most `most`."""
    times = {}
    for choice in CHOICES:
        losses = found.loss_ratios(TASK, choice)
        ratios = found.ratios(plan.own(backend, choice), plan.ALONE[OWN], rate)
        if ratios and (not losses or statistics.median(losses) <= most):
            times[choice] = statistics.median(ratios)
    return min(times, key=times.__getitem__, default=None)


def _row(
    goal: str, choice: str, bound: float, ratios: list[float], losses: list[float]
) -> list[str]:
    loss = f"{statistics.median(losses):.3f}" if losses else "not measured"
    reached = "yes" if statistics.median(ratios) <= bound else "no"
    measured = tables.with_range(ratios, ".3f")
    return [goal, CHOICES[choice].title, f"≤ {bound:g}", measured, loss, reached]
