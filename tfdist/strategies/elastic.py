"""What the strategies of elastic groups share: every rank can go on without any other one."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.balance.balancer import Balancer
from tfdist.checksum import checksum
from tfdist.elastic import metrics
from tfdist.elastic.functions import (
    ElasticFunction,
    PredictFunction,
    StepsFunction,
    TrainFunction,
    without_optionals,
)
from tfdist.elastic.group import Group
from tfdist.elastic.operations import Sum
from tfdist.elastic.processes import LostSourceError
from tfdist.engines.contract import Engine
from tfdist.options import Options
from tfdist.step import keras_steps
from tfdist.step import logs as step_logs
from tfdist.step.replica import ReplicaStep
from tfdist.strategies import wrapping
from tfdist.strategies.accumulated import AccumulatedGradients, AtOnce
from tfdist.strategies.elastic_extended import ElasticExtended
from tfdist.strategies.elastic_local import ElasticLocalStrategy
from tfdist.strategies.elastic_refusals import own_loop
from tfdist.structures import Structure


class ElasticStrategy(ElasticLocalStrategy):
    """Mixed in before a `tf.distribute.Strategy` whose processes are an elastic group."""

    def _init_elastic(
        self, options: Options, group: Group, engine: Engine, device: str, log_all_ranks: bool
    ) -> None:
        self.group = group
        self._windows: weakref.WeakKeyDictionary[keras.Model, int] = weakref.WeakKeyDictionary()
        self._equal = 0  # so many of the variables were made equal in all ranks
        compat.install_collectives()
        compat.separate_collectives(self)
        extended = ElasticExtended(self, device, engine, group.made)
        tf.distribute.Strategy.__init__(self, extended)

        def take_place() -> None:
            # A rank on its way to the others is no rank of the group. It stands for the last one.
            extended.take_place(min(group.rank, group.size - 1), group.size)

        take_place()
        group.on_change(take_place)
        group.on_change(self._balance_anew)
        group.on_settled(self._balance_anew)  # steps that were repeated there do not count
        group.on_settled(self._note_change)
        self._init_processes(options, engine, log_all_ranks)
        self.on_demand = AtOnce(engine.processes)
        # A rank may have to make a variable while others do not.
        extended.before_creating = lambda kwargs: (kwargs, True)

    def _init_balance(self, options: Options) -> None:
        shares = self.num_replicas_in_sync, options.balance_max_share
        self.balancer = Balancer(*shares) if options.balance else None

    def _balance_anew(self) -> None:
        if self.balancer is not None:
            self.balancer.begin_anew(self.num_replicas_in_sync)

    def _note_change(self) -> None:
        if self.spans is not None:
            self.spans.change_group(repeats=self.local is None)

    @property
    def is_multi_process(self) -> bool:
        """True, also while there is only one process left."""
        return True

    @property
    def compiles_replicas(self) -> bool:
        """True: the group may have other members in the next step."""
        return True

    @property
    def _reads_whole_batches(self) -> bool:
        return True

    def _ends(self) -> tf.Tensor:
        if self.balancer is not None:
            return super()._ends()
        size = self.num_replicas_in_sync
        return tf.constant(np.arange(size + 1) / size, tf.float64)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distributes a data set of global batches for Keras; each rank reads them whole.

        Raises:
            ValueError: in a loop of the user's own, which cannot be repeated from here.
        """
        if not compat.keras_distributes():
            raise own_loop("a data set to distribute")
        return super().experimental_distribute_dataset(dataset, options)

    def _distribute(
        self,
        data: tf.data.Dataset,
        options: tf.distribute.InputOptions | None,
        length: int,
        spec: Structure,
    ) -> Any:
        # All ranks read the same whole batches, so they need not ask each other for the end.
        self.extended.experimental_enable_get_next_as_optional = False
        distributed = tf.distribute.Strategy.distribute_datasets_from_function(
            self, lambda _: data, options
        )
        self._batch_specs[distributed] = spec
        return distributed

    def distribute_datasets_from_function(
        self, dataset_fn: Callable, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Refused: nobody else could read the data of a rank that is lost.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "In an elastic job (`tfdist run --min`) every rank must be able to read all data, so "
            "that nothing is lost with a rank. Hand in a data set of global batches. "
            "Received: a function that makes each rank's own data set"
        )

    def _run_keras_step(
        self,
        fn: Callable,
        args: tuple,
        kwargs: dict | None,
        options: tf.distribute.RunOptions | None,
        model: keras.Model,
        name: str,
    ) -> Any:
        def finish_logs(logs: Structure, running: ReplicaStep) -> Any:
            own = not isinstance(logs, dict) or set(logs) != set(model.get_metrics_result())
            return step_logs.averaged(logs, running) if own else logs

        step = keras_steps.complete(fn, model, name, finish_logs)
        if name != "predict_step" and not self._trains_apart:
            step = metrics.counted_everywhere(step, model, name, self.extended.is_summed)
        return self._run_with_shares(step, args, kwargs, options, name)

    def prepare_run(self, model: keras.Model) -> None:
        """Makes the steps of Keras' methods operations of the group."""
        if isinstance(model.train_function, TrainFunction):
            return
        wrapping.wrap_optimizers(model)
        before = self._windows.get(model)

        def step_of(name: str, reduction: str) -> Callable[[Structure], Structure]:
            def one_step_on_data(batch: Structure) -> Structure:
                results = self.run(compat.step_of(model, name), (without_optionals(batch),))
                return self.reduce_per_replica(results, reduction)

            return one_step_on_data

        def function(kind: type[ElasticFunction], name: str, reduction: str) -> ElasticFunction:
            accumulated = AccumulatedGradients(model, self)
            return kind(self.group, model, step_of(name, reduction), accumulated, read)

        def read() -> Sequence[tf.Variable]:
            return self.read_between_steps(model)

        kind = self._kind_of_train_function(model)
        model.train_function = function(kind, "train_step", "auto")
        model.train_function.rounds = self.group_rounds
        model.test_function = function(StepsFunction, "test_step", "auto")
        model.predict_function = function(PredictFunction, "predict_step", "concat")
        self._windows[model] = model.train_function.number
        if before is not None:
            self.group.windows.close(before)
            model.train_function.begin_anew()

    def trace_anew(self, model: keras.Model) -> None:
        """Makes the next train step of `model` contain what callbacks have added to steps."""
        model.train_function.forget_trace()

    def run(
        self,
        fn: Callable,
        args: tuple = (),
        kwargs: dict | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Runs `fn` on the replica of this process, as a part of a step of Keras.

        Raises:
            ValueError: in a loop of the user's own, whose steps cannot be repeated.
        """
        if not self.group.is_operating:
            raise own_loop("a call of run")
        return super().run(fn, args, kwargs, options)

    def trains_with(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Notes what ranks that join get from other ranks."""
        self.group.belongings.objects = list(callbacks)

    def epoch_logs(self) -> dict[str, float]:
        """What the group was at the last operation; the same in all ranks.

        `replicas`: the number of ranks; `recoveries`: how often the group has changed;
        `lost_residuals`, with compression: how many ranks were lost with their residuals.
        """
        *members, recoveries, lost = self.processes.membership
        logs: dict[str, float] = {"replicas": len(members), "recoveries": recoveries}
        return logs | ({"lost_residuals": lost} if self.group.residuals.were_noted else {})

    def reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Structure, axis: int | None = None
    ) -> Any:
        """Reduces a value over the ranks; see `tf.distribute.Strategy`."""
        reduce = super().reduce
        return self._together(lambda: reduce(reduce_op, value, axis))

    def gather(self, value: Structure, axis: int) -> Any:
        """Gathers a value of all ranks; see `tf.distribute.Strategy`."""
        gather = super().gather
        return self._together(lambda: gather(value, axis))

    def _together(self, act: Callable[[], Any]) -> Any:
        """Makes what a callback does with other ranks an operation of the group."""
        return self.group.execute(Sum(act)) if tf.executing_eagerly() else act()

    def loaded(self, model: keras.Model) -> None:
        """Notes that other gradients wait for an update now."""
        if isinstance(model.train_function, TrainFunction):
            model.train_function.begin_anew()

    def make_equal(self, model: keras.Model) -> bool:
        """Gives all ranks the first values that variables have in rank 0: each has made its own."""
        made = self.group.made
        if self._equal == made.count:
            return False
        while self._equal < made.count:
            count, chief = made.count, self.processes.source(0)
            alike = made.alive().keys() - self.group.residuals.variables().keys()
            new = {n: v for n, v in made.alive().items() if n in alike and n >= self._equal}
            own = json.dumps({n: checksum(v) for n, v in new.items()})
            texts = [json.loads(text) for text in self.processes.all_gather_texts(own)]
            common = [n for n in texts[0] if all(n in text for text in texts)]
            self.group.check_made(map(int, common))
            differing = [n for n in common if len({text[n] for text in texts}) > 1]
            variables = [new[int(number)] for number in differing]
            values = [variable.numpy() for variable in variables]
            try:
                found = self.processes.broadcast(values, chief)
            except LostSourceError:
                continue
            for variable, value in zip(variables, found):
                variable.assign(value)
            self._equal = count
        return True
