"""What tests assert of callbacks in the middle of a round, of several processes or of one."""

import numpy as np

from tests.local_steps import by_hand
from tests.local_steps.checks import equal_copies
from tests.multi_process.scenarios.local_callbacks import CASE

_EVERYWHERE = ("after a batch", "before a batch", "before the first", "one copy", "saved")


def refused(found):
    """What a callback sets within a round is refused, and named."""
    for rank in found:
        for name in _EVERYWHERE:
            assert "ValueError: With `local` a callback cannot set weights" in rank[name], name
            assert "['net/hidden/kernel'], set in the middle" in rank[name], name
            assert "finish_round" in rank[name]
            assert "one of ['Acts']" in rank[name], name
        if len(found) == 1:
            assert rank["other values"] == ""
        else:
            assert "With `local` a callback must not set variables" in rank["other values"]


def _halve(replicas):
    replicas.meet()
    for model in replicas.models:
        model.layers[0].kernel.assign(0.5 * model.layers[0].kernel)
    replicas.anchor = replicas.weights()


def _slow_down(replicas):
    for optimizer in replicas.optimizers:
        optimizer.learning_rate = 0.03


def _train(replicas, act=lambda replicas: None, batches=(), epochs=CASE.epochs):
    """Trains by hand, and calls `act` after `batches`, counted from 1 over all epochs."""
    x, y = CASE.data()
    number = 0
    for _ in range(epochs):
        for start in range(0, len(x), CASE.batch):
            replicas.step(x[start : start + CASE.batch], y[start : start + CASE.batch])
            number += 1
            if number in batches:
                act(replicas)
        replicas.meet()
    return replicas


def allowed(found):
    """A round ends early where the model is saved; what is set after it counts."""
    size = sum(len(rank["file"][0]) for rank in found)

    def made():
        return by_hand.Replicas(CASE, size)

    at_file = made()
    saved = []

    def save(replicas):
        replicas.meet()
        saved.append(replicas.weights())

    x, y = CASE.data()
    resumed = made()
    for start in (0, CASE.batch):
        resumed.step(x[start : start + CASE.batch], y[start : start + CASE.batch])
    resumed.meet()  # where the backup was written; then the epoch is trained again
    expected = {
        "round ended first": _train(made(), _halve, (3, 8)).weights(),
        "learning rate": _train(made(), _slow_down, (3, 8)).weights(),
        "saves": _train(at_file, save, (3, 6, 9)).weights(),
        "file": saved[-1],
        "resumed": _train(resumed).weights(),
    }
    for name, weights in expected.items():
        equal_copies([rank[name] for rank in found], name)
        for (copy, *_), weight in zip(found[0][name], weights, strict=True):
            assert np.abs(copy - weight).max() <= CASE.tolerance, name
