"""What elastic strategies do where ranks train apart for some steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.elastic import metrics
from tfdist.elastic.functions import TrainFunction
from tfdist.elastic.group import Group
from tfdist.elastic.local_functions import LocalTrainFunction
from tfdist.elastic.local_rounds import GroupRounds
from tfdist.local.choices import LocalSteps
from tfdist.options import Options
from tfdist.step import logs as step_logs
from tfdist.strategies.elastic_extended import ElasticExtended
from tfdist.strategies.multi_process import MultiProcessStrategy


class ElasticLocalStrategy(MultiProcessStrategy):
    """Mixed in below an elastic strategy.

    Attributes:
        group: the group.
        group_rounds: lets the ranks meet at the end of a round; None without `local`.
    """

    group: Group
    group_rounds: GroupRounds | None = None

    def _init_options(self, options: Options) -> None:
        super()._init_options(options)
        if self.local is None:
            return
        if self.group.backup_dir:
            raise ValueError(
                "With `local` a part of the state is in each rank only. Start the job without "
                "--backup-dir, or leave `local` out. "
                f"Received: local={self.local} with --backup-dir {self.group.backup_dir}"
            )
        self.all_rounds.meets_in_steps = False
        strategy = weakref.proxy(self)  # the group outlives the strategy
        self.group.made.keep_apart(lambda: strategy.kept_apart())
        self.group_rounds = GroupRounds(
            self, self.local.updates, lambda value: self.processes.sum(value)
        )

    @property
    def local(self) -> LocalSteps | None:
        """How the ranks train apart, however many there are by now; None if they do not."""
        local = self.options.local
        return None if local is None or local.is_synchronous else local

    def kept_apart(self) -> Iterable[tf.Variable]:
        """What each rank has for itself between rounds: its optimizers' state, its last samples."""
        for rounds in self.all_rounds.of(None):
            averages = {id(v.value) for v in rounds.averaged}
            own = [v for v in rounds.state.owned if id(v) not in averages]
            yield from (self.experimental_local_results(v)[0] for v in (*own, rounds.state.last))

    def set_in_rounds(self) -> dict[int, tf.Variable]:
        """What steps of rounds set, and what becomes equal where these end; by number."""
        rounds = self.all_rounds.of(None)
        found = [v.value for each in rounds for v in [*each.averaged, *(each.changed or ())]]
        ids = {id(self.experimental_local_results(value)[0]) for value in found}
        return {n: v for n, v in self.group.made.alive().items() if id(v) in ids}

    def own_metrics(self, model: keras.Model) -> list[tf.Variable]:
        """The variables of this process in which metrics count this rank's samples."""
        extended: ElasticExtended = self.extended
        summed = metrics.own(model, extended.is_summed)
        numbers = [v for v in summed if v.dtype.is_floating or v.dtype.is_integer]
        return [self.experimental_local_results(v)[0] for v in numbers]

    def read_between_steps(self, model: keras.Model) -> Sequence[tf.Variable]:
        """The variables of this process that are read between steps: metrics, and counters."""
        of_metrics = [v.value for metric in model.metrics for v in metric.variables]
        local = [self.experimental_local_results(value)[0] for value in of_metrics]
        return [*local, *self.group.made.scalars()]

    def _kind_of_train_function(self, model: keras.Model) -> type[TrainFunction]:
        if self.group_rounds is None:
            return TrainFunction
        return LocalTrainFunction

    def finish_rounds(self) -> None:
        """Ends the round that is under way, in an operation of the group; called by all ranks."""
        if self.group_rounds is not None:
            self._between_steps.note_end_of_round()
            self.group_rounds.finish()
            self.all_rounds.release()

    def make_logs_equal(self, model: keras.Model, logs: dict, results: dict | None = None) -> None:
        """Gives all ranks the same logs; see `ApartStrategy`. Metrics count all ranks' samples."""
        if self.group_rounds is None:
            return
        results = self.group_rounds.results(model) if results is None else results
        super().make_logs_equal(model, logs, results)
        found = dict(results)
        if {name for name in logs if not name.startswith("val_")} != set(results):  # as Keras does
            found = step_logs.with_results(dict(logs), results, model, "train_step")
        numbers = {n: np.asarray(v) for n, v in found.items() if n in results}
        logs.update({n: v if v.ndim else v.item() for n, v in numbers.items()})
