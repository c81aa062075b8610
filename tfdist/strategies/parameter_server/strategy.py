"""Variables on parameter servers, and workers that do not wait for each other."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import keras
import tensorflow as tf
from typing_extensions import Unpack

from tfdist import compat
from tfdist.callbacks.staleness_monitor import StalenessMonitor
from tfdist.compression.base import Compressor
from tfdist.engines.processes import OneProcess, Processes
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.parameter_server.chief import errors, keras_hooks, refusals
from tfdist.parameter_server.chief.keras_function import KerasFunction
from tfdist.parameter_server.chief.metrics import metrics_safely
from tfdist.parameter_server.chief.partition_updates import PartitioningExtended
from tfdist.parameter_server.chief.predicting import PredictedData, PredictFunction
from tfdist.parameter_server.chief.training import TrainFunction
from tfdist.parameter_server.connecting import cluster_of_one_process, connect
from tfdist.parameter_server.contracts import Closable
from tfdist.parameter_server.data.distributed_data import DistributedData, Division
from tfdist.parameter_server.data.pipelines import OwnPipelines, SerializedDataset
from tfdist.parameter_server.devices import servers
from tfdist.parameter_server.report import StalenessReport
from tfdist.parameter_server.snapshots.snapshots import Snapshots
from tfdist.parameter_server.spans import NotesSpans
from tfdist.replay.journal import open_journal, recorded_cluster
from tfdist.staleness import Policies, StalenessPolicy
from tfdist.step import keras_steps
from tfdist.step.collection import CollectsGradients
from tfdist.strategies import wrapping
from tfdist.strategies.keras_strategy import KerasStrategy
from tfdist.strategies.parameter_server import checks
from tfdist.structures import Structure
from tfdist.validation import (
    check_layers,
    check_model_scope,
    check_no_synchronized_layers,
    check_not_empty,
    check_resolver,
)


class ParameterServerStrategy(
    KerasStrategy, CollectsGradients, NotesSpans, tf.distribute.ParameterServerStrategy
):
    """Asynchronous training: each worker updates the weights on its own, when it is ready.

    A drop-in for `tf.distribute.ParameterServerStrategy` that runs Keras 3's `fit`, `evaluate` and
    `predict`. One process, the chief, runs the script. The others are workers and parameter
    servers: there, making the strategy starts TensorFlow's server and does not return, and the
    process ends when the chief has ended. The processes find each other by the environment variable
    TF_CONFIG, which `tfdist run --ps` and cluster managers set. Make the strategy before TensorFlow
    runs anything.

    A worker reads the weights, computes a gradient on a batch of its own, and sends the gradient to
    the parameter servers. Before the gradient is applied, others may have updated the weights τ
    times: τ is the gradient's staleness, and the option `staleness` says what is done about it. An
    epoch has as many batches as on one device, divided among the workers; `steps_per_epoch` is the
    total.

    With `accumulation_steps` a worker averages the gradients of so many batches for an update.
    `compression` compresses gradients on their way, in buckets of `bucket_bytes`; what is left
    unsent is not saved.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`, such as from
            `tfdist.cluster.local_cluster`; None for TF_CONFIG.
        variable_partitioner: as in `tf.distribute.ParameterServerStrategy`, for trainable variables
            only: divides them by rows among the parameter servers.
        staleness: a policy of `tfdist.staleness`, or several in a list; None for none.
        input: who reads the training data. "static": each worker reads all data and takes every
            n-th batch, so all workers have the same share. The data must have one order, so
            shuffling gets seeds where you have set none. "dynamic": the chief reads the data, and a
            worker gets the next batch when it is ready, so a slow worker gets fewer batches. With
            `staleness.Synchronous()`, and for `evaluate` and `predict`, the chief always reads.
        max_pending: how many steps may be under way at a time, 1 to 2**31 - 1; None, and any larger
            number, for one per worker.
        worker_timeout: seconds, up to 1,000,000. If all workers are lost for this long, or a
            parameter server is, training ends with an error.
        record: the path of a file in which the chief records what each update was made of. Then
            `tfdist replay` can train again in the same order; see the guide "Record and replay".
            None for no record.
        snapshot_every: after how many updates of a `fit` a snapshot is written, to which training
            goes back if a parameter server dies and is started again. 0 for never; None for about
            once a minute, and for never where there is a `record`.
        snapshot_dir: a folder that the chief and all servers share, in which each server writes its
            part; None for a temporary folder in which the chief writes all parts.
        pull_compression: a `tfdist.compression.Compressor` of one tensor, or its name, for the
            weights that workers read; see the guide, "Fewer bytes to the workers". None for none.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ValueError: for a cluster without chief, worker or ps, and options out of range.
        TimeoutError: when workers or parameter servers cannot be reached; names them.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> with tfdist.cluster.local_cluster(workers=2, ps=1) as resolver:
    ...     strategy = tfdist.ParameterServerStrategy(resolver)
    ...     with strategy.scope():
    ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...         model.compile(optimizer="adam", loss="mse")
    ...     x, y = np.ones((32, 4)), np.ones((32, 1))
    ...     history = model.fit(x, y, batch_size=4, verbose=0, callbacks=strategy.callbacks())
    >>> strategy.staleness_report().updates
    8
    """

    @takes_options
    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        variable_partitioner: Callable | None = None,
        *,
        staleness: StalenessPolicy | Sequence[StalenessPolicy] | None = None,
        input: Literal["static", "dynamic"] = "static",
        max_pending: int | None = None,
        worker_timeout: float = 60.0,
        record: str | os.PathLike | None = None,
        snapshot_every: int | None = None,
        snapshot_dir: str | os.PathLike | None = None,
        pull_compression: str | Compressor | None = None,
        **options: Unpack[CommonOptions],
    ):
        common = Options(**options)  # type: ignore[arg-type]
        self.policies = Policies.of(staleness)
        refusals.check_compression(common, self.policies)
        self.pull = checks.pull(pull_compression, self.policies, record)
        check_resolver(cluster_resolver)
        checks.check(common, input, max_pending, worker_timeout, record, variable_partitioner)
        folder = checks.absolute(snapshot_dir)
        snapshot_every = checks.updates_of_snapshots(snapshot_every, folder, record)
        recorded = recorded_cluster()
        resolver = cluster_of_one_process(recorded.ps) if recorded else connect(cluster_resolver)
        with compat.servers_see_each_other():
            super().__init__(resolver, variable_partitioner)
        extended = PartitioningExtended(self, resolver, variable_partitioner)
        tf.distribute.Strategy.__init__(self, extended)
        compat.allow_functions_of_coordinator(self)
        self._init_options(common)
        self.processes: Processes = OneProcess()  # the chief alone runs the script
        self.addresses = resolver.cluster_spec().as_dict()
        self.ps_devices = servers(len(self.addresses["ps"]))
        self.num_workers = recorded.workers if recorded else len(self.addresses["worker"])
        refusals.check_drop(self.policies, self.num_workers)
        self.max_pending = max_pending or self.num_workers
        self.timeout = worker_timeout
        self.coordinator = compat.Coordinator(self)
        self.lost: set[int] = set()
        self.version = 0
        self.report = StalenessReport()
        self.nonfinite: list[tuple[int, str, int]] | None = None
        self.input = input
        self._predicting: PredictFunction | None = None
        self._running: list[KerasFunction] = []
        self._active: Closable | None = None
        self._own_pipelines: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.journal = open_journal(record, self)
        every = 0 if recorded else snapshot_every
        self.snapshots = Snapshots(self, extended.variables, every, folder)

    @property
    def is_chief(self) -> bool:
        """True: only the chief gets a strategy object, and it writes files and progress."""
        return True

    def monitors(self, log_dir: str | os.PathLike | None) -> list[keras.callbacks.Callback]:
        """`tfdist.callbacks.StalenessMonitor`, with its histograms in `log_dir`."""
        return [StalenessMonitor(self, log_dir)]

    def staleness_report(self) -> StalenessReport:
        """How stale the gradients of the last `fit` were, and what was done about it."""
        return self.report

    def check_compiled(self, model: keras.Model) -> None:
        """Raises ValueError if `compile` was asked for what the strategy cannot do."""
        checks.check_compiled(model)

    # Data

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> DistributedData | PredictedData | tf.distribute.DistributedDataset:
        """Data for Keras' loops; see `tf.distribute.Strategy`.

        Raises:
            ValueError: when `dataset` is known to be empty.
        """
        if not tf.executing_eagerly():  # a ClusterCoordinator runs this on a worker
            return super().experimental_distribute_dataset(dataset, options)
        check_not_empty(dataset)
        own: OwnPipelines | None = self._own_pipelines.get(dataset)

        def make_shards() -> SerializedDataset | OwnPipelines | None:
            if own is not None or self.input == "dynamic":
                return own
            return SerializedDataset(dataset, self.num_workers)

        division = None
        if self.policies.synchronous:
            division = Division.of(self)
        data = DistributedData(dataset, make_shards, division)
        for_keras = PredictedData(data, self._predicting) if self._predicting else data
        self._batch_specs[for_keras] = dataset.element_spec
        return for_keras

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """Distributes data that the user divides; see `tf.distribute.Strategy`.

        Args:
            dataset_fn: called for each worker with a `tf.distribute.InputContext`; returns the data
                set of batches that this worker reads. For `evaluate` and `predict` the chief reads
                the data sets of all workers, one after the other.
            options: used only in functions that a `ClusterCoordinator` runs on workers.
        """
        if not tf.executing_eagerly():
            return super().distribute_datasets_from_function(dataset_fn, options)
        pipelines = OwnPipelines(dataset_fn, self.num_workers)
        dataset = pipelines.joined()
        self._own_pipelines[dataset] = pipelines
        return dataset

    # Runs

    def run(
        self,
        fn: Callable,
        args: tuple = (),
        kwargs: dict | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Structure:
        """Runs `fn`; see `tf.distribute.Strategy.run`.

        Raises:
            ValueError: for Keras' own training step, which only `fit` runs, on the workers.
        """
        _, step = compat.keras_step(fn) or (None, None)
        if step == "train_step":
            raise ValueError(
                "Under a parameter server a model is trained with `fit`, which keeps all workers "
                "busy. Received: a call of train_on_batch"
            )
        return super().run(fn, args=args, kwargs=kwargs, options=options)

    @contextlib.contextmanager
    def keras_run(self, model: keras.Model, name: str) -> Iterator[None]:
        """Surrounds a run of `model`: "fit", "evaluate" or "predict" by `name`."""
        if name == "fit":
            self.report = StalenessReport()
        # Callbacks look at the weights before the function begins: no update may be under way then.
        if self._active is not None:
            self._active.close()
        function = keras_hooks.function_for(self, model, name)
        outer = self._predicting
        self._predicting = function if isinstance(function, PredictFunction) else None
        self._running.append(function)
        try:
            with errors.explaining(self.addresses, self.timeout), contextlib.ExitStack() as stack:
                if isinstance(function, TrainFunction):
                    stack.enter_context(self.journal.fit(function))
                    stack.enter_context(self.snapshots.fit(model))
                    stack.enter_context(metrics_safely(function, self._running))
                    stack.enter_context(self.spans_of_fit())
                yield
        finally:
            self._running.pop()
            self._predicting = outer
            function.close()

    def prepare(self, model: keras.Model) -> None:
        """Checks and wraps what did not exist yet in the scope and at `compile`."""
        layers = compat.flatten_layers(model)
        check_model_scope(model, layers, self, compat.stored)
        wrapping.wrap_optimizers(model)
        if (parts := self.policies.parts(self.num_workers)) > 1:
            check_layers(layers, parts)
            check_no_synchronized_layers(layers, "The workers of a parameter server")
            keras_steps.warn_of_unsynchronized_layers(model)

    def activate(self, work: Closable) -> None:
        """Makes `work` the only work of the workers; ends all other work first."""
        if self._active is not None:
            self._active.close()
        self._active = work


keras_hooks.install(ParameterServerStrategy)
