"""The rounds of local steps of a model, and what is exchanged of them beside its steps."""

from __future__ import annotations

import keras

from tfdist.step.local_exchanging import Exchanging
from tfdist.step.local_rounds import LocalRounds
from tfdist.step.model_optimizers import optimizers_of


class BesideSteps:
    """Begins and awaits exchanges between the executions of a model's train function.

    Args:
        exchanging: runs the exchanges.
    """

    def __init__(self, exchanging: Exchanging):
        self._exchanging = exchanging

    def before(self, model: keras.Model) -> None:
        """Waits for what the next execution may merge."""
        for rounds in rounds_of(model):
            self._exchanging.wait_before_steps(rounds, _most_updates(model, rounds))

    def after(self, model: keras.Model) -> None:
        """Begins to exchange what the last execution has sent."""
        for rounds in rounds_of(model):
            self._exchanging.begin(rounds, _most_updates(model, rounds))


def _most_updates(model: keras.Model, rounds: LocalRounds) -> int:
    """How many updates an execution of the train function makes at most."""
    return int(model.steps_per_execution) * rounds.most_updates


def rounds_of(model: keras.Model) -> list[LocalRounds]:
    """Where the replicas meet, for the optimizers of `model` that are built."""
    found = [getattr(optimizer, "rounds", None) for optimizer in optimizers_of(model).values()]
    return [rounds for rounds in found if rounds is not None]


def updates_of(model: keras.Model) -> int:
    """The smallest number of updates of the optimizers of `model` that its steps apply."""
    built = [optimizer for optimizer in optimizers_of(model).values() if optimizer.built]
    applied = [o for o in built if (own := getattr(o, "rounds", None)) and own.is_applied]
    return min((int(optimizer.iterations.numpy()) for optimizer in applied or built), default=0)
