"""What a synchronous strategy does where rounds of local steps last a time."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist import compat
from tfdist.local.choices import LocalSteps
from tfdist.options import Options
from tfdist.step import end_of_data
from tfdist.step.local_pace import Pace
from tfdist.strategies.balanced import BalancedStrategy


class TimedStrategy(BalancedStrategy):
    """Mixed in below a synchronous strategy: its data, if a round is to last a time.

    Each process reads the whole global batches, and takes the parts of its replicas as planned.

    Attributes:
        pace: plans the rounds; None if they have a number of updates.
    """

    pace: Pace | None
    _begun: int | None = None  # the run in which training has begun last

    def _init_options(self, options: Options) -> None:
        super()._init_options(options)
        self.pace = None
        local, own = self.local, len(self.extended.worker_devices)
        if local is not None and local.seconds is not None:
            self.pace = Pace(local.seconds, self.num_replicas_in_sync // own, own)
            self.skips_replicas = True

    @property
    def local(self) -> LocalSteps | None:
        """How the replicas train apart; None if all updates are synchronous."""
        return self.options.local_steps(self.num_replicas_in_sync)

    @property
    def _reads_whole_batches(self) -> bool:
        if self.pace is None:
            return super()._reads_whole_batches
        # Keras distributes the data of validation in `fit` too, but later.
        run = end_of_data.run_of_fit()
        return compat.keras_distributes() and run is not None and run != self._begun

    def _ends(self) -> tf.Tensor:
        return super()._ends() if self.pace is None else self.pace.ends()

    def _whole_batches(
        self, dataset: tf.data.Dataset, map_batches: Callable[..., tf.data.Dataset]
    ) -> tf.data.Dataset:
        is_unknown = compat.number_of_batches(dataset) == tf.data.UNKNOWN_CARDINALITY
        if self.pace is not None and self.is_multi_process and is_unknown:
            raise ValueError(
                "With data of unknown length the processes ask each other in each step whether "
                "data are left, so fast processes wait for slow ones. With rounds by time give the "
                "data a length: `dataset.apply(tf.data.experimental.assert_cardinality(n))`. "
                f"Received: data of unknown length with local={self.local}"
            )
        return super()._whole_batches(dataset, map_batches)

    def _check_planned(self) -> None:
        """Raises ValueError for a local step with data that are not cut as planned."""
        if self.pace is not None:
            raise ValueError(
                "In rounds by time a fast process takes more of the global batches, so tfdist must "
                "divide them. Give `fit` the arrays or the data set themselves, not one that was "
                "distributed before or is divided by you; in a loop of your own give a number of "
                f"`steps`. Received: local={self.local} with other data"
            )

    def begin_pace(self) -> None:
        """Called where training begins: what was measured may have been another model's."""
        if self.pace is not None:
            self._begun = end_of_data.run_of_fit()
            self.pace.begin_anew()

    def keep_pace(self) -> None:
        """Called before each execution of a train function; plans the next round if it is time."""
        if self.pace is not None:
            self.pace.keep()

    def epoch_of_pace(self) -> dict[str, float]:
        """What rounds by time add to the logs of an epoch: the updates per round of each replica.

        Called by all processes.
        """
        made = [] if self.pace is None else self.pace.take_made()
        return {f"updates_per_round_{replica}": number for replica, number in enumerate(made)}
