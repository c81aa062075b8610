"""Streaming DiLoCo by hand: fragments of the weights, sent and merged one after the other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.local_steps import by_hand
from tests.local_steps.by_hand import CASES, Case, Replicas, dense, normalized, of, projected, sgd

# The positions of the variables of `by_hand.dense` and the logits: kernel and bias of each.
FRAGMENTS = {1: [[0, 1, 2, 3]], 2: [[0], [1, 2, 3]], 3: [[0], [2], [1, 3]]}


def streaming(steps: int, fragments: int = 1, overlap: int = 0, **more: Any) -> tuple[str, dict]:
    arguments = {"outer_learning_rate": 0.7, "outer_momentum": 0.9, "mixing_factor": 0.5, **more}
    return "DiLoCo", {"steps": steps, "fragments": fragments, "overlap": overlap, **arguments}


_LONG = {"rows": 150, "batch": 8, "epochs": 2}  # 19 updates in an epoch, the last of 6 samples
_EMPTY = {**_LONG, "rows": 145}  # the last one is of one sample
STREAMED = {
    "fragments": Case(of("Adam"), dense, streaming(4, 2), **_LONG),
    "three fragments": Case(of("Adam"), dense, streaming(7, 3), **_EMPTY),
    "overlap": Case(sgd(momentum=0.9), dense, streaming(4, 1, 2), **_LONG),
    "overlap, nothing mixed": Case(
        of("Adam"), dense, streaming(4, 2, 1, mixing_factor=0.0), **_LONG
    ),
    "both": Case(of("Adam"), dense, streaming(6, 2, 2), **_EMPTY),
    "both, mostly their own": Case(sgd(), dense, streaming(9, 3, 2, mixing_factor=0.8), **_EMPTY),
    # Fragments are sent after 3 and 7 of 7 updates, and merged 3 later, where the next one is sent.
    "merged where the next one is sent": Case(sgd(), dense, streaming(7, 2, 3), **_EMPTY),
    "both, the mean": Case(
        sgd(), dense, streaming(6, 2, 2, outer_learning_rate=1.0, outer_momentum=0.0), **_EMPTY
    ),
    # The last update of an epoch is the 19th, so it sends, or merges.
    "sent by the last update": Case(sgd(), dense, streaming(19, 1, 3), **_EMPTY),
    "sent before the last update": Case(sgd(), dense, streaming(18, 1, 3), **_EMPTY),
    "merged by the last update": Case(sgd(), dense, streaming(16, 1, 3), **_EMPTY),
    "unknown length": Case(sgd(), dense, streaming(6, 2, 2), **_EMPTY, unknown=True),
    # A step without data follows, which merges.
    "unknown length, sent by the last update": Case(
        sgd(), dense, streaming(19, 1, 1), **_EMPTY, unknown=True
    ),
    "eager": Case(sgd(), dense, streaming(6, 2, 2), **_EMPTY, compiled={"run_eagerly": True}),
    "accumulation": Case(
        of("Adam"), dense, streaming(4, 2, 1), **_EMPTY, options={"accumulation_steps": 2}
    ),
    "several steps per execution": Case(
        of("Adam"), dense, streaming(6, 2, 2), **_EMPTY, compiled={"steps_per_execution": 3}
    ),
    "BatchNormalization": Case(sgd(), normalized, streaming(6, 2, 2), rows=300, batch=16, epochs=2),
    "ema": Case(
        sgd(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5),
        dense,
        streaming(6, 2, 2),
        **_EMPTY,
    ),
    "constraints": Case(sgd(), projected, streaming(6, 2, 2), **_LONG),
    "everything": Case(
        of("Adam", use_ema=True, ema_momentum=0.8),
        normalized,
        streaming(4, 2, 1),
        rows=289,  # of parts of two samples BatchNormalization makes signs
        batch=16,
        epochs=2,
        options={"accumulation_steps": 2},
        compiled={"steps_per_execution": 3},
    ),
}
CASES.update({f"streamed: {name}": case for name, case in STREAMED.items()})


@dataclasses.dataclass
class _Sent:
    """A fragment that was sent and not merged.

    Attributes:
        at: after how many updates.
        mean: what the replicas had moved in the mean, by variable.
        averages: the means of the moving averages.
    """

    at: int
    mean: list[np.ndarray]
    averages: list[np.ndarray]


class Streamed(Replicas):
    """R replicas that exchange fragment by fragment."""

    def __init__(self, case: Case, replicas: int):
        super().__init__(case, replicas)
        arguments = case.local[1]
        self._steps, self._number = arguments["steps"], arguments["fragments"]
        self._overlap, self._alpha = arguments["overlap"], arguments["mixing_factor"]
        self._rate, self._decay = arguments["outer_learning_rate"], arguments["outer_momentum"]
        self._fragments = fragments_of(self.models[0], self._number)
        self._counted = np.zeros((self._number, replicas))
        self._sent: dict[int, _Sent] = {}
        self._mixed: set[int] = set()

    def after_update(self) -> None:
        now = self.updates
        for number, sent in [*self._sent.items()]:
            if now - sent.at == self._overlap:
                self._merge(number, self._alpha)
        for number in range(self._number):
            turn = (number + 1) * self._steps // self._number
            if now >= turn and (now - turn) % self._steps == 0:
                self._send(number)
                if not self._overlap:
                    self._merge(number, 0.0)
        if now % self._steps == 0:
            self.meet_statistics()

    def meet(self) -> None:
        """Where the weights must be whole."""
        for number in range(self._number):
            if number in self._sent:
                has_gone_on = self._samples(number).any()
                self._merge(number, self._alpha if has_gone_on else 0.0)
            if self._samples(number).any():
                self._send(number)
                self._merge(number, 0.0)
        self.updates = 0
        if self.unsettled.any():
            self.meet_statistics()
        self.anchor = self.weights()
        self.samples[:] = 0
        self._counted[:] = 0

    def _samples(self, number: int) -> np.ndarray:
        return self.samples - self._counted[number]

    def _send(self, number: int) -> None:
        samples = self._samples(number)
        share = samples / samples.sum()
        mean = self._mean([model.trainable_variables for model in self.models], share)
        moved = [anchor - w for anchor, w in zip(self.anchor, mean)]
        averages = self._mean([self._averages(optimizer) for optimizer in self.optimizers], share)
        self._sent[number] = _Sent(self.updates, moved, averages)
        self._counted[number] = self.samples

    def _merge(self, number: int, alpha: float) -> None:
        sent = self._sent.pop(number)
        for place in self._fragments[number]:
            mean = sent.mean[place]
            self.momentum[place] = self._decay * self.momentum[place] + mean
            step = mean + self._decay * self.momentum[place]
            first = self.models[0].trainable_variables[place]
            new = _constrained(first, self.anchor[place] - self._rate * step)
            self.anchor[place] = new
            for model, optimizer in zip(self.models, self.optimizers):
                weight = model.trainable_variables[place]
                own = alpha * weight.numpy() + (1 - alpha) * new
                weight.assign(_constrained(weight, own))
                for average in self._averages(optimizer)[place : place + 1]:
                    average.assign(alpha * average.numpy() + (1 - alpha) * sent.averages[place])


def _constrained(variable, value: np.ndarray) -> np.ndarray:
    return value if variable.constraint is None else np.asarray(variable.constraint(value))


def fragments_of(model, number: int) -> list[list[int]]:
    """The positions of the variables of each fragment."""
    if [len(v.shape) for v in model.trainable_variables] == [2, 1, 2, 1] and number in FRAGMENTS:
        return FRAGMENTS[number]
    sizes = [int(np.prod(v.shape)) for v in model.trainable_variables]
    groups: list[list[int]] = [[] for _ in range(number)]
    for place in np.argsort(-np.array(sizes), kind="stable").tolist():
        min(groups, key=lambda group: sum(sizes[p] for p in group)).append(place)
    return groups


def trained(case: Case, replicas: int) -> by_hand.Replicas:
    """The case, trained by hand as `fit` trains it."""
    kind = Streamed if "fragments" in case.local[1] else Replicas
    return kind(case, replicas).train().finish()
