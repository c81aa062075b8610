"""The callback that shows how stale the gradients are."""

from __future__ import annotations

import copy
from typing import Any

import keras


class StalenessMonitor(keras.callbacks.Callback):
    """Logs in each epoch how stale the gradients were, and what was done about it.

    `ParameterServerStrategy.callbacks()` contains it. These values come into the logs, and so into
    History, TensorBoard, and CSVLogger if it comes later in the list of callbacks; all are of the
    epoch's updates:

    - `staleness_mean`, `staleness_max`: of applied gradients, in updates;
    - `staleness_drops`: the number of gradients that were not applied;
    - `staleness_waits`: how often a worker had to wait before a step;
    - `staleness_lr_factor`: the mean of what the learning rate was multiplied by.

    `strategy.staleness_report()` has the histograms of each worker.

    Args:
        strategy: the `tfdist.ParameterServerStrategy`.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy
        self._before = copy.deepcopy(strategy.staleness_report())

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes what there was before."""
        self._before = copy.deepcopy(self._strategy.staleness_report())

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the epoch's values to `logs`."""
        epoch_report = self._strategy.staleness_report().since(self._before)
        if logs is not None:
            logs["staleness_mean"] = epoch_report.mean_staleness
            logs["staleness_max"] = epoch_report.max_staleness
            logs["staleness_drops"] = epoch_report.drops
            logs["staleness_waits"] = epoch_report.waits
            logs["staleness_lr_factor"] = epoch_report.learning_rate_factor
