"""What a strategy of several processes may do around the runs of Keras; by default nothing."""

from __future__ import annotations

from collections.abc import Sequence

import keras


class RunEvents:
    """Called while `fit`, `evaluate` and `predict` run under a strategy of several processes."""

    def prepare_run(self, model: keras.Model) -> None:
        """Called before Keras' methods run steps of `model`."""

    def make_equal(self, model: keras.Model) -> bool:
        """Called by all processes before `model` is trained or used.

        Returns:
            Whether there were variables that each process had made for itself, and are equal now.
        """
        return False

    def loaded(self, model: keras.Model) -> None:
        """Called by all processes when they have read what each of them has for itself."""

    def trains_with(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Called when training begins, with the callbacks of the user and of Keras."""

    def epoch_logs(self) -> dict[str, float]:
        """What the strategy adds to the logs of each epoch."""
        return {}
