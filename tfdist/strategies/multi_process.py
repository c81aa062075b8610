"""What the strategies of several processes share: data, logs, predictions and one random seed."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.balance.whole_batches import on_host
from tfdist.data import absent, batches, seeds, shards
from tfdist.engines.contract import Engine
from tfdist.engines.processes import Processes
from tfdist.options import Options
from tfdist.processes import creation, digest, meeting, watching
from tfdist.processes.agreement import Agreement
from tfdist.processes.on_demand import OnDemand
from tfdist.step import exchange, keras_steps, replica, weighting
from tfdist.step import logs as step_logs
from tfdist.strategies.base import SynchronousStrategy
from tfdist.strategies.run_events import RunEvents
from tfdist.structures import Structure
from tfdist.validation import check_not_empty

_UNKNOWN = int(tf.data.UNKNOWN_CARDINALITY)
_INFINITE = int(tf.data.INFINITE_CARDINALITY)
_LENGTHS = {_UNKNOWN: "unknown", _INFINITE: "without end"}

_GLOBAL_DATA = (
    "Every process must be given the same global batches, of which it takes its part; data that "
    "you divide yourself are handed in with `strategy.distribute_datasets_from_function`."
)
_ONE_STRATEGY = (
    "All ranks must make the same strategies, with the same versions of everything. A random seed "
    "is one for all, as a shuffled data set must have the same order in all of them: call "
    "`keras.utils.set_random_seed` with the same number everywhere, or nowhere."
)

# For each dtype of predictions, the dtype in which engines exchange them.
_EXCHANGED_AS = {
    **{dtype: dtype for dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)},
    tf.bfloat16: tf.float32,
    **{dtype: tf.int32 for dtype in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16)},
}


class MultiProcessStrategy(RunEvents, SynchronousStrategy):
    """Mixed in before a `tf.distribute.Strategy` whose replicas live in several processes.

    All processes run the same script. Data sets and arrays are global: each process takes its part
    of every batch.

    Attributes:
        everyone: all processes that train one model; see `Coordinated`.
        log_all_ranks: whether all processes show progress, not only the chief.
        callbacks_run: whether Keras is running callbacks; the processes agree after them.
        data: compares what the processes have read of global batches.
        on_demand: lets the first process save alone while callbacks run.
    """

    everyone: Processes
    log_all_ranks: bool
    callbacks_run: bool
    data: watching.Comparison
    on_demand: OnDemand

    def _init_processes(
        self,
        options: Options,
        engine: Engine,
        log_all_ranks: bool,
        everyone: Processes | None = None,
    ) -> None:
        self._init_synchronous(options, engine)
        processes = engine.processes
        self.everyone = everyone or processes
        self.log_all_ranks = log_all_ranks
        self.callbacks_run = False
        self.data = watching.Comparison(self.everyone)
        self.on_demand = OnDemand(processes)
        if self.is_multi_process:
            self._agree(options)
            self.extended.before_creating = functools.partial(creation.before_creating, processes)

    def agreements(
        self, model: keras.Model, variables: Callable[[keras.Model], list[tf.Variable]]
    ) -> Sequence[Agreement]:
        """What makes one decision of what callbacks did to `variables`: here one agreement."""
        return [Agreement(model, self, variables)]

    def _agree(self, options: Options) -> None:
        """Raises ValueError in all processes if their strategies or seeds differ."""
        seed = seeds.global_seed()
        facts = digest.of_strategy(type(self).__name__, options, len(self.extended.worker_devices))
        facts["random seed"] = seed
        numbers = meeting.meet(
            self.processes,
            "makes a strategy",
            facts,
            number=secrets.randbits(31),
            advice=_ONE_STRATEGY,
        )
        if seed is None:
            tf.random.set_seed(numbers[0])

    @property
    def is_multi_process(self) -> bool:
        """Whether there are other processes to agree with."""
        return self.processes.size > 1

    @contextlib.contextmanager
    def scope(self) -> Iterator[tf.distribute.Strategy]:
        """A context in which models, optimizers and metrics are made for this strategy.

        Raises:
            RuntimeError: when the scope of another strategy is active.
            ConnectionError: when another process is lost; names the lost rank where known.
        """
        with self.processes.naming_lost_ranks(), super().scope():
            yield self

    # Data

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distributes a data set of global batches; see `tf.distribute.Strategy`.

        Every process reads the whole data set and keeps its replicas' parts of each batch. So the
        global batches are the same as on one device. If reading everything is too much, divide the
        data with `distribute_datasets_from_function`.

        Raises:
            ValueError: when `dataset` is known to be empty; when its auto-shard policy asks for
                anything but parts of global batches; when the processes' data sets differ in
                length.
        """
        if not self.is_multi_process:
            return super().experimental_distribute_dataset(dataset, options)
        if dataset in self._batch_specs:
            return dataset
        check_not_empty(dataset)
        shards.check_auto_shard(dataset)
        length = self._agreed_length(dataset)
        dataset = absent.marked(dataset)
        replicas, local = self.num_replicas_in_sync, len(self.extended.worker_devices)
        dataset_spec = absent.as_none(dataset.element_spec)

        def watched(data: tf.data.Dataset, function: Callable) -> tf.data.Dataset:
            return self.data.watch(data, length != _UNKNOWN, function)

        if self._reads_whole_batches:
            whole = self._whole_batches(dataset, watched)
            return self._distribute(whole, options or on_host(), length, dataset_spec)
        parts = shards.of_global_batches(dataset, self.processes.rank, local, replicas, watched)
        size = shards.static_batch_size(dataset_spec)
        if size is None or size % replicas:
            parts = shards.with_unknown_sizes(parts)
        return self._distribute(parts, options, length, dataset_spec)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distributes data that the user divides; see `tf.distribute.Strategy`.

        Args:
            dataset_fn: called with a `tf.distribute.InputContext`; returns this worker's data set,
                with batches for one replica. The data sets of workers may differ in length and in
                the sizes of batches. A step's loss is the mean over the samples that there are. The
                data end when the longest data set ends.
            options: a `tf.distribute.InputOptions`.
        """
        if not self.is_multi_process:
            return super().distribute_datasets_from_function(dataset_fn, options)
        context = tf.distribute.InputContext(
            self.processes.size, self.processes.rank, self.num_replicas_in_sync
        )
        dataset = dataset_fn(context)
        length = self._longest(int(dataset.cardinality()))
        data = shards.with_unknown_sizes(shards.padded(dataset, length))
        return self._distribute(data, options, length, dataset.element_spec)

    def _distribute(
        self,
        data: tf.data.Dataset,
        options: tf.distribute.InputOptions | None,
        length: int,
        spec: Structure,
    ) -> Any:
        """Distributes this process' `data`, one element per local replica and step.

        Args:
            data: this process' data set.
            options: a `tf.distribute.InputOptions`.
            length: the number of elements, equal in all processes; -1 for no end, -2 for unknown.
                If unknown, the processes ask each other in each step whether data are left.
            spec: the type specs of a batch.
        """
        if length == _UNKNOWN or len(self.extended.worker_devices) > 1:
            data = data.filter(lambda *batch: True)
        self.extended.experimental_enable_get_next_as_optional = length == _UNKNOWN
        distributed = super().distribute_datasets_from_function(lambda _: data, options)
        self._batch_specs[distributed] = spec
        return distributed

    def _agreed_length(self, dataset: tf.data.Dataset) -> int:
        length = compat.number_of_batches(dataset)
        facts = {"batches": _LENGTHS.get(length, length), "types": str(dataset.element_spec)}
        meeting.meet(self.processes, "distributes a data set", facts, advice=_GLOBAL_DATA)
        return length

    def _longest(self, own: int) -> int:
        """The longest process' number of elements, rounded up to a multiple of local replicas."""
        meeting.meet(self.processes, "distributes data that it has divided", {})
        lengths = self.processes.all_gather([own])[:, 0].tolist()
        for special in (_UNKNOWN, _INFINITE):
            if special in lengths:
                return special
        local = len(self.extended.worker_devices)
        return -(-max(lengths) // local) * local

    def compare_reading(self, what: str) -> None:
        """Compares what the processes have read in a loop of the user's own."""
        if self.is_multi_process:
            self.data.compare_reading(what)

    # Steps

    def _known_to_be_even(self, sizes: list, keras_step: str | None) -> bool:
        # All processes must give the same answer. In Keras' loops a size is static only if every
        # batch divides evenly. A user's own step may be traced for one batch of any data.
        if self.is_multi_process and (keras_step is None or tf.executing_eagerly()):
            return False
        return super()._known_to_be_even(sizes, keras_step)

    def _uneven_shares(self, sizes: list[tf.Tensor]) -> Callable[[int], weighting.Share]:
        return lambda n: weighting.share_of(sizes[n], exchange.all_reduce([sizes[n]])[0])

    def _run_keras_step(
        self,
        fn: Callable,
        args: tuple,
        kwargs: dict | None,
        options: tf.distribute.RunOptions | None,
        model: keras.Model,
        name: str,
    ) -> Any:
        if not self.is_multi_process:
            return super()._run_keras_step(fn, args, kwargs, options, model, name)
        whole_batch = not batches.is_distributed(args)
        is_own = step_logs.has_own(model, name)
        own_logs = False

        def finish_logs(logs: Structure, running: replica.ReplicaStep) -> Any:
            nonlocal own_logs
            own_logs = not isinstance(logs, dict) or set(logs) != set(model.get_metrics_result())
            if own_logs or not is_own or "loss" not in logs:
                return step_logs.averaged(logs, running) if own_logs else logs
            # It may be the loss of the batch, which no metric tracks.
            return {**logs, "loss": step_logs.averaged(logs["loss"], running)}

        step = keras_steps.complete(fn, model, name, finish_logs)
        logs = self._run_with_shares(step, args, kwargs, options, name)
        if name != "predict_step" and (own_logs or whole_batch) and not self._trains_apart:
            return step_logs.with_global_metrics(logs, model, name)
        return logs

    def reduce_per_replica(self, values: Structure, reduction: str) -> Any:
        """Reduces a step's results for Keras: logs over local replicas, predictions over all.

        Logs are global already, or belong to metrics. Keras reads the global result of metrics at
        the end of an epoch, so local logs are enough here and save one exchange per step.

        Raises:
            ValueError: for predictions that processes cannot exchange (sparse, ragged, strings).
        """
        if not self.is_multi_process:
            return super().reduce_per_replica(values, reduction)
        if reduction == "concat":
            return tf.nest.map_structure(self._all_predictions, values)
        return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], values)

    def _all_predictions(self, value: Structure) -> tf.Tensor:
        parts = self.experimental_local_results(value)
        for part in parts:
            if not isinstance(part, tf.Tensor) or part.dtype not in _EXCHANGED_AS:
                raise ValueError(
                    "Processes can exchange predictions that are dense numbers only; predict the "
                    f"rest in one process. Received: predictions {part}"
                )
        dtype = parts[0].dtype
        numbers = self.extended.call_for_each_replica(
            lambda part: tf.cast(part, _EXCHANGED_AS[dtype]), args=(value,)
        )
        return tf.cast(self.gather(numbers, axis=0), dtype)
