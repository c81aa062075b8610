"""The callback that names the slowest replica, and what it costs the others."""

from __future__ import annotations

import time

import keras
import numpy as np

from tfdist.step.clock import StepClock


class StragglerMonitor(keras.callbacks.Callback):
    """Measures how long each replica computes in a step, and for how long the others wait.

    A synchronous step takes as long as its slowest replica. A replica's time is that from its batch
    to its gradients, before it waits for those of the others. It is measured inside of the step, so
    the step is traced anew when training begins and ends. Where kernels run on a GPU, it is the
    time that the host waits for them. With `balance=True` the slowest replica has the smallest
    part, so there is little to wait for.

    The logs of each epoch get `slowest_replica`, its number, and `waiting`, the part of the step
    for which the other replicas wait for it on average, from 0 to 1. If training is verbose, rank 0
    prints it. Give the callback to all ranks. With one replica, or one step, there is nothing to
    report. The time of a step contains what callbacks do between steps.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="sgd", loss="mse")
    >>> monitor = tfdist.callbacks.StragglerMonitor()
    >>> x = np.ones((8, 1))
    >>> history = model.fit(x, x, batch_size=2, verbose=0, callbacks=[monitor]).history
    >>> sorted(history)
    ['loss', 'slowest_replica', 'waiting']
    >>> monitor.seconds[0].shape
    (2,)

    Attributes:
        seconds: for each epoch the seconds that the replicas have computed in a step on average,
            float64 of shape `[replicas]`.
    """

    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[np.ndarray] = []
        self._clock: StepClock
        self._before = np.zeros((2, 0))
        self._is_first = True
        self._begun = self._ended = 0.0

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to measure.

        Raises:
            ValueError: for a model under a strategy without synchronous steps of tfdist.
        """
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "clock"):
            raise ValueError(
                "tfdist.callbacks.StragglerMonitor needs a model that was made in the scope of a "
                "synchronous tfdist strategy (with parameter servers, StalenessMonitor tells what "
                f"each worker does). Received: a model under {type(strategy).__name__}"
            )
        with strategy.scope():
            self._clock = strategy.clock = StepClock()
        strategy.measure_steps(self.model)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Measures no longer."""
        self.model.distribute_strategy.clock = None
        self.model.distribute_strategy.measure_steps(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins anew."""
        self._is_first = True
        self._before = self._computed()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the time; the first call is left out, as it may be traced."""
        self._ended = time.monotonic()
        if self._is_first:
            self._is_first = False
            self._begun, self._before = self._ended, self._computed()

    def _computed(self) -> np.ndarray:
        """The seconds of this process' replicas, and how many steps each has made."""
        local = self.model.distribute_strategy.experimental_local_results
        sums = self._clock.seconds, self._clock.steps
        return np.array([[float(part) for part in local(each)] for each in sums])

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Notes what the replicas have computed, and for how long they waited."""
        strategy = self.model.distribute_strategy
        computed, steps = self._computed() - self._before
        own = [*computed, self._ended - self._begun]
        row = [*(int(1e9 * seconds) for seconds in own), round(steps[0])]
        rows = strategy.processes.all_gather(row)
        counts = rows[:, -1:]
        if rows[:, :-2].size == 1 or not counts.all():
            return
        rows = rows / counts / 1e9
        seconds = rows[:, :-2].ravel()
        self.seconds.append(seconds)
        slowest = int(seconds.argmax())
        waits = float((seconds[slowest] - np.delete(seconds, slowest)).mean())
        waiting = waits / rows[:, -2].max()
        if logs is not None:
            logs.update(slowest_replica=slowest, waiting=waiting)
        if strategy.is_chief and (self.params or {}).get("verbose"):
            longer = seconds[slowest] / seconds.min()
            print(
                f"\nReplica {slowest} computes {longer:.1f}x as long as the fastest one; "
                f"the others wait {waiting:.0%} of the step."
            )
