"""What a cell promises, and by how much it is missed."""

from __future__ import annotations

import numpy as np

from tests.equivalence.harness import Outcome
from tests.equivalence.results import Result

MAX_WEIGHT_DIFFERENCE = 1e-6
MAX_HISTORY_DIFFERENCE = 1e-5


def weight_difference(outcome: Outcome, expected: Outcome) -> float:
    """max |Δw| over weights and extra arrays; inf where they cannot be compared."""
    pairs = list(zip(outcome.weights, expected.weights))
    pairs += [(outcome.extra[name], expected.extra[name]) for name in expected.extra]
    if len(outcome.weights) != len(expected.weights):
        return float("inf")
    worst = 0.0
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            return float("inf")
        if ours.size:
            difference = np.abs(ours.astype("float64") - theirs.astype("float64")).max()
            worst = max(worst, float("inf") if np.isnan(difference) else float(difference))
    return worst


def history_difference(outcome: Outcome, expected: Outcome) -> float:
    """The largest relative difference of the histories; inf where names or lengths differ."""
    if set(outcome.history) != set(expected.history):
        return float("inf")
    worst = 0.0
    for name, values in expected.history.items():
        ours = outcome.history[name]
        if len(ours) != len(values):
            return float("inf")
        for a, b in zip(ours, values):
            difference = abs(a - b) / max(abs(b), 1e-3)
            worst = max(worst, float("inf") if np.isnan(difference) else float(difference))
    return worst


def differing_variables(ranks: list[Result]) -> list[str]:
    """The variables of model and optimizer that are not the same, bit by bit, on all replicas."""
    paths = [[path for path, _ in rank.variables] for rank in ranks]
    if any(len(own) != len(paths[0]) for own in paths):
        return [f"other variables by rank: {paths}"]
    differing = []
    for index, path in enumerate(paths[0]):
        parts = [part for rank in ranks for part in rank.variables[index][1]]
        if len({(part.dtype.str, part.shape, part.tobytes()) for part in parts}) > 1:
            differing.append(path)
    return differing


def problems(
    ranks: list[Result], expected: Outcome, twin: Outcome | None = None, history: bool = True
) -> list[str]:
    """What is wrong with a cell, in one line each; empty when it keeps the promise.

    Args:
        ranks: the results of the column's processes.
        expected: the outcome on one device.
        twin: the outcome of as many replicas in one process; None not to compare with it.
        history: whether the histories must be equal too.
    """
    found = []
    for rank, result in enumerate(ranks):
        difference = weight_difference(result.outcome, expected)
        if difference > MAX_WEIGHT_DIFFERENCE:
            found.append(f"rank {rank}: the weights differ from one device's by {difference:.1e}")
        if history and history_difference(result.outcome, expected) > MAX_HISTORY_DIFFERENCE:
            ours, theirs = result.outcome.history, expected.history
            found.append(f"rank {rank}: the history is {ours}, on one device {theirs}")
        if twin is not None:
            difference = weight_difference(result.outcome, twin)
            if difference > MAX_WEIGHT_DIFFERENCE:
                found.append(f"rank {rank}: the weights differ from Mirrored's by {difference:.1e}")
    differing = differing_variables(ranks)
    if differing:
        found.append(f"not the same bits on all replicas: {differing}")
    return found
