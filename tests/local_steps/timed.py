"""Rounds that last a time, by hand: the cuts and the lengths of rounds are those of the job."""

from __future__ import annotations

import dataclasses
import time

import keras
import numpy as np
import tensorflow as tf

from tests.local_steps import by_hand
from tests.local_steps.by_hand import Case, Replicas

SECONDS = "0.15s"


class Delay(keras.layers.Layer):
    """Sleeps for each sample."""

    seconds = 0.0  # set later: layers are made alike in all ranks

    def call(self, inputs):
        def sleep(batch):
            time.sleep(self.seconds * len(batch))
            return batch

        return tf.ensure_shape(tf.numpy_function(sleep, [inputs], inputs.dtype), inputs.shape)

    def compute_output_shape(self, input_shape):
        return input_shape


def _delayed(layers):
    return lambda: [Delay(name="delay"), *layers()]


def _outer() -> tuple[str, dict]:
    return "DiLoCo", {"steps": SECONDS, "outer_learning_rate": 0.7, "outer_momentum": 0.9}


MEAN = Case(
    by_hand.sgd(momentum=0.9),
    _delayed(by_hand.dense),
    ("LocalSGD", {"steps": SECONDS}),
    rows=16 * 30 + 3,
    epochs=2,
)
TIMED = {
    "mean": MEAN,
    "outer": dataclasses.replace(
        MEAN,
        optimizer=by_hand.of("Adam"),
        layers=_delayed(by_hand.normalized),
        local=_outer(),
        rows=32 * 21 + 13,  # smaller parts have variances near to 0
        batch=32,
        options={"accumulation_steps": 2},
    ),
    "after": dataclasses.replace(
        MEAN, local=("LocalSGD", {"steps": SECONDS, "after": 5}), rows=16 * 20 + 3
    ),
    "several steps per execution": dataclasses.replace(
        MEAN, compiled={"steps_per_execution": 3}, rows=16 * 20 + 3
    ),
}


@dataclasses.dataclass
class Written(keras.callbacks.Callback):
    """What the job writes down: its plans, and how many samples each replica here had in a step.

    Attributes:
        plans: for each plan its updates, and its rows.
        plan_of_step: the number of the plan of each execution; "epoch" where an epoch ends.
        samples: of each step, by replica of this process.
    """

    plans: list = dataclasses.field(default_factory=list)
    plan_of_step: list = dataclasses.field(default_factory=list)
    samples: list = dataclasses.field(default_factory=list)

    decides_in_batches = False
    changes_variables = False

    def __post_init__(self):
        super().__init__()
        self._last = None

    def __hash__(self):
        return id(self)

    def on_train_batch_begin(self, batch, logs=None):
        plan = self.model.distribute_strategy.pace.plan
        if plan is not self._last:
            self._last = plan
            self.plans.append((plan.updates, plan.rows))
        self.plan_of_step.append(len(self.plans) - 1)

    def on_train_batch_end(self, batch, logs=None):
        strategy, rounds = self.model.distribute_strategy, self.model.optimizer.rounds
        self.samples.append(
            [int(n) for n in strategy.experimental_local_results(rounds.state.last)]
        )


class Timed(Replicas):
    """Replicas whose cuts and rounds are given.

    Args:
        case: the case.
        replicas: R.
        plans: as in `Written`.
        plan_of_step: as in `Written`.
    """

    def __init__(self, case: Case, replicas: int, plans: list, plan_of_step: list):
        super().__init__(case, replicas)
        steps = case.compiled.get("steps_per_execution", 1)
        per_epoch = -(-case.rows // case.batch)
        executions = -(-per_epoch // steps)
        self._plans = plans
        self._of_step = [
            plan_of_step[epoch * executions + step // steps]
            for epoch in range(len(plan_of_step) // executions)
            for step in range(per_epoch)
        ]
        self._turn = 0
        self._after = case.local[1].get("after", 0)
        self.cuts: list[list[int]] = []

    def train(self, epochs=None, synchronous=0):
        return super().train(epochs, synchronous or self._after)

    def parts(self, size):
        step = len(self.cuts)
        is_new = step > 0 and self._of_step[step] != self._of_step[step - 1]
        self._turn = 0 if is_new else self._turn
        rows = self._plans[self._of_step[step]][1]
        of_processes = np.array(rows[self._turn % len(rows)])
        self._turn += 1
        local = len(self.models) // len(of_processes)
        cuts = _cuts(np.repeat(of_processes, local) / local, size)
        self.cuts.append(cuts)
        return [slice(start, stop) for start, stop in zip(cuts[:-1], cuts[1:])]

    def after_update(self):
        if self.updates >= self._plans[self._of_step[len(self.cuts) - 1]][0]:
            self.meet()


def _cuts(shares, size):
    """Rounded ends of the parts; whoever takes part gets a sample, if there are enough."""
    takes = np.concatenate([[0], np.cumsum(shares > 0)])
    least = takes * (size >= takes[-1])
    ends = np.concatenate([[0.0], np.cumsum(shares)[:-1], [1.0]])
    rising = np.maximum.accumulate(np.round(ends * size).astype(int) - least)
    return (np.minimum(rising, size - least[-1]) + least).tolist()
