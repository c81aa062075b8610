"""The two callbacks that run before and after the user's callbacks in every process."""

from __future__ import annotations

import keras
import numpy as np

from tfdist import compat
from tfdist.processes import meeting
from tfdist.processes.callback_kinds import acts_in_predict_batches, acts_in_test_batches
from tfdist.processes.contracts import Coordinated
from tfdist.processes.shared import Shared
from tfdist.processes.shared_variables import replica_states
from tfdist.step.logs import has_own


def coordinate(strategy: Coordinated, callback_list: keras.callbacks.CallbackList) -> None:
    """Puts the two callbacks around the callbacks of the list; only the chief shows progress.

    Args:
        strategy: the strategy of several processes.
        callback_list: the callbacks of one `fit`, `evaluate` or `predict`.
    """
    callbacks = callback_list.callbacks
    if callbacks and isinstance(callbacks[0], First):
        return
    progress: list[keras.callbacks.Callback] = []
    if not (strategy.is_chief or strategy.log_all_ranks):
        progress = [c for c in callbacks if isinstance(c, keras.callbacks.ProgbarLogger)]
    shared = Shared(strategy, callbacks, [c for c in callbacks if c not in progress], progress)
    if not (strategy.is_chief or strategy.log_all_ranks):
        shared.files.silence()
    shared.ends = [First(shared), Last(shared)]
    shared.show(shared.files.with_commits())


class First(keras.callbacks.Callback):
    """Runs before the user's callbacks and notes the state that they find."""

    def __init__(self, shared: Shared):
        super().__init__()
        self._shared = shared
        self._compared = False
        self._epoch: int | None = None

    def _begin(self, phase: str) -> None:
        shared = self._shared
        saves_alone = phase in shared.may_save_alone
        shared.strategy.on_demand.begin(replica_states(self.model) if saves_alone else [])
        shared.strategy.callbacks_run = True
        shared.whole.begin(
            # At the beginning and end of training Keras itself may change variables.
            acts=not phase.startswith("on_epoch") or shared.may_change_variables(phase),
            trained=phase != "on_epoch_begin",
        )

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Repairs the backups of a killed process, and begins to watch."""
        optimizer = self.model.optimizer
        variables = self.model.trainable_variables
        if optimizer is not None and not optimizer.built and variables:
            with self._shared.strategy.scope():
                optimizer.build(variables)
        self._shared.strategy.make_equal(self.model)
        self._check_params()
        self._shared.start(self.model)
        self._shared.recover()
        self._begin("on_train_begin")

    def _check_params(self) -> None:
        """Raises ValueError if the processes were asked for different numbers of steps.

        In the same exchange they learn whether callbacks of one of them look into the batches of
        `evaluate`, and into those of `predict`.
        """
        shared, params = self._shared, self.params or {}
        facts = {name: params.get(name) for name in ("steps", "epochs")}
        in_tests = any(map(acts_in_test_batches, shared.callbacks))
        in_predictions = any(map(acts_in_predict_batches, shared.callbacks))
        doing = "begins to train or evaluate"
        looks = in_tests + 2 * in_predictions
        found = meeting.meet(shared.strategy.everyone, doing, facts, number=looks)
        shared.asks_each_test_batch = any(number & 1 for number in found)
        shared.asks_each_predict_batch = any(number & 2 for number in found)

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Checks the number of steps; the time of validation steps is measured anew."""
        if not self._shared.training:
            self._check_params()
        self._shared.questions.start_again()

    def on_predict_begin(self, logs: dict | None = None) -> None:
        """Checks the number of steps."""
        self._check_params()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch and the state."""
        self._shared.questions.start_again()
        self._begin("on_epoch_begin")
        self._succeed(None)
        self._epoch = epoch
        self._shared.files.begin_epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process; compares the processes' data."""
        is_time = self._shared.questions.ask_now_and_then()
        if batch > 0 and (is_time or not self._compared):
            self._compare_data()
        self._succeed(self._epoch)

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process."""
        self._shared.questions.ask_now_and_then()

    def on_predict_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process."""
        self._shared.questions.ask_now_and_then()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Gives callbacks that look into batches the metrics of all processes."""
        self._shared.saved.forget()
        self._succeed(self._epoch)
        if self._shared.asks_each_batch:
            self._make_global(logs, "train_step")
            if logs is not None:
                self._shared.strategy.make_logs_equal(self.model, logs)
            self._shared.in_batches.begin()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Gives callbacks that look into test batches the metrics of all processes."""
        if self._shared.asks_each_test_batch:
            self._make_global(logs, "test_step")

    def _make_global(self, logs: dict | None, step: str) -> None:
        """Puts the metrics of all processes in place of those in the logs of a batch."""
        results = self.model.get_metrics_result()
        found = {name: np.asarray(results[name]) for name in logs or () if name in results}
        if has_own(self.model, step) and "loss" in found and not found["loss"].any():
            del found["loss"]  # no metric tracks it, so the loss of the batch stays
        if logs is not None:
            logs.update({n: float(v.item()) if v.size == 1 else v for n, v in found.items()})

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Compares the processes' data, and notes the state."""
        self._compare_data()
        self._begin("on_epoch_end")
        if logs is not None:
            added = self._shared.strategy.epoch_logs()
            logs.update({name: value for name, value in added.items() if name not in logs})
        self._succeed(self._epoch)
        self._shared.saved.begin(epoch, logs or {})

    def _succeed(self, epoch: int | None) -> None:
        self._shared.succeed(self.params or {}, self.model, epoch)

    def _compare_data(self) -> None:
        self._compared = True
        self._shared.strategy.data.compare()

    def on_test_end(self, logs: dict | None = None) -> None:
        """Compares the processes' data; in training, the end of the epoch does so instead."""
        if not self._shared.training:
            self._compare_data()

    def on_predict_end(self, logs: dict | None = None) -> None:
        """Compares the processes' data."""
        self._compare_data()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Lets the chief's callbacks clean up their files."""
        self._succeed(None)
        if self._shared.strategy.is_chief:
            self._shared.files.end_training()
        self._begin("on_train_end")


class Last(keras.callbacks.Callback):
    """Runs after the user's callbacks and turns the processes' decisions into one."""

    def __init__(self, shared: Shared):
        super().__init__()
        self._shared = shared

    def _end(self, restores: bool = False) -> None:
        self._meet()
        self._shared.strategy.callbacks_run = False
        self._shared.strategy.on_demand.end()
        for state in replica_states(self.model):
            state.release()
        self._shared.whole.end(restores)

    def _meet(self) -> None:
        """Raises ValueError if a callback of another process still reads a weight in parts.

        It would wait for this process, and this process for the end of its callbacks, or in the
        step that follows.
        """
        if any(map(compat.is_sharded, self.model.variables)):
            meeting.meet(self._shared.strategy.processes, "has ended its callbacks", {})

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Adopts what one process restored."""
        callbacks = self._shared.callbacks
        self._end(any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks))

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Adopts what one process changed."""
        self._end()

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        self._meet()

    def on_predict_begin(self, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        self._meet()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        if self._shared.asks_each_batch:
            self._meet()

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        if self._shared.asks_each_test_batch:
            self._meet()

    def on_predict_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        if self._shared.asks_each_predict_batch:
            self._meet()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere when one process stops."""
        if self._shared.asks_each_batch:
            self._meet()
            self._shared.in_batches.end()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Ends the evaluation everywhere when one process ends it."""
        if self._shared.asks_each_test_batch:
            self._meet()
            ends = [int(bool(self.model.stop_evaluating))]
            self.model.stop_evaluating = bool(self._shared.strategy.everyone.all_gather(ends).any())

    def on_predict_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        if self._shared.asks_each_predict_batch:
            self._meet()

    def on_test_end(self, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        self._meet()

    def on_predict_end(self, logs: dict | None = None) -> None:
        """Raises an error if one process still reads."""
        self._meet()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adopts what one process changed or decided."""
        self._end()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Adopts what one process restored."""
        self._end()
        for state in replica_states(self.model):
            state.end_training()
        self._shared.training = False
        self._shared.files.restore()
