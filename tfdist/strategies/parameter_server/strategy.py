"""Variables on parameter servers, and workers that do not wait for each other."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import check_callable, check_path
from tfdist.callbacks.checks import TrainingChecks
from tfdist.callbacks.staleness_monitor import StalenessMonitor
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.parameter_server import errors, hooks
from tfdist.parameter_server.connecting import connect, number_of_workers
from tfdist.parameter_server.distributed import DistributedData
from tfdist.parameter_server.functions import PredictFunction, Run, TestFunction
from tfdist.parameter_server.partitions import PartitioningExtended, check_optimizer
from tfdist.parameter_server.pipelines import OwnPipelines, SerializedDataset
from tfdist.parameter_server.report import StalenessReport
from tfdist.parameter_server.training import TrainFunction
from tfdist.replay.journal import open_journal
from tfdist.staleness import Policies
from tfdist.step import keras_steps
from tfdist.strategies import wrapping
from tfdist.strategies.keras_strategy import KerasStrategy
from tfdist.validation import (
    check_choice,
    check_integer,
    check_layers,
    check_model_scope,
    check_no_synchronized_layers,
    check_not_empty,
    check_resolver,
    check_seconds,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ParameterServerStrategy(KerasStrategy, tf.distribute.ParameterServerStrategy):
    """Asynchronous training: each worker updates the weights on its own, when it is ready.

    A drop-in for `tf.distribute.ParameterServerStrategy` under which Keras 3's `fit`, `evaluate`
    and `predict` run. One process is the chief, which runs the script; the others are workers and
    parameter servers, in which making the strategy starts TensorFlow's server and does not return:
    they end when the chief has ended. The processes find each other by the environment variable
    TF_CONFIG, which `tfdist run --ps` and cluster managers set.

    Make the strategy before TensorFlow runs anything.

    A worker reads the weights, computes a gradient on a batch of its own, and sends it to the
    parameter servers. By the time it is applied, others may have updated the weights τ times: that
    is its staleness, which `staleness` does something about. An epoch has as many batches as on one
    device, divided among the workers; `steps_per_epoch` is the total.

    With `accumulation_steps` a worker averages the gradients of so many batches before one update.
    `compression` is for the way to the parameter servers, in buckets of `bucket_bytes`; what it
    leaves unsent is not saved. Without it each variable's gradient goes to its parameter server by
    itself.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`, such as from
            `tfdist.cluster.local_cluster`; None for TF_CONFIG.
        variable_partitioner: as in `tf.distribute.ParameterServerStrategy`, for trainable variables
            only: divides them by rows among the parameter servers.
        staleness: a policy of `tfdist.staleness`, or several in a list; None for none.
        input: who reads the training data. "static": each worker reads all of it and takes every
            n-th batch, so that all workers have the same share; the data must have one order, for
            which shuffling gets seeds where you have set none. "dynamic": the chief reads it, and
            a worker gets the next batch when it is ready, so that a slow worker gets fewer. With
            `staleness.Synchronous()` the chief always reads it. Data for `evaluate` and `predict`
            is read by the chief.
        max_pending: the number of steps that may be under way at a time, 1 to 2**31 - 1; None for
            one per worker. More has no effect, as a worker has one at a time.
        worker_timeout: seconds, up to 1,000,000, after which it is an error that all workers are
            lost.
        record: the path of a file in which the chief records what each update was made of, so that
            `tfdist replay` can train again in the same order; see the guide "Record and replay".
            None for no record.
        **options: what all strategies take, by keyword; see `tfdist.Options`.

    Raises:
        ValueError: for a cluster without chief, worker or ps, and options out of range.
        TimeoutError: when workers or parameter servers cannot be reached; it names them.

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

    collects_gradients = True

    @takes_options
    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        variable_partitioner: Callable | None = None,
        *,
        staleness: Any = None,
        input: Literal["static", "dynamic"] = "static",
        max_pending: int | None = None,
        worker_timeout: float = 60.0,
        record: str | os.PathLike | None = None,
        **options: Unpack[CommonOptions],
    ):
        common = Options(**options)  # type: ignore[arg-type]
        self.policies = Policies.of(staleness)
        _check_momentum(common, self.policies)
        check_choice("input", input, ("static", "dynamic"))
        check_seconds("worker_timeout", worker_timeout)
        if max_pending is not None:
            check_integer("max_pending", max_pending, 1)
        if record is not None:
            check_path("record", record)
        if variable_partitioner is not None:
            check_callable("variable_partitioner", variable_partitioner)
        check_resolver(cluster_resolver)
        resolver = connect(cluster_resolver)
        super().__init__(resolver, variable_partitioner)
        tf.distribute.Strategy.__init__(
            self, PartitioningExtended(self, resolver, variable_partitioner)
        )
        compat.allow_functions_of_coordinator(self)
        self._init_options(common)
        self.addresses = resolver.cluster_spec().as_dict()
        self.ps_devices = [
            f"/job:ps/replica:0/task:{task}/device:CPU:0"
            for task in range(len(self.addresses["ps"]))
        ]
        self.num_workers = number_of_workers(self.addresses)
        self.max_pending = max_pending or self.num_workers
        self.timeout = worker_timeout
        self.coordinator = compat.Coordinator(self)
        self.lost: set[int] = set()
        self.version = 0
        self.report = StalenessReport()
        self.nonfinite: list[tuple[int, str, int]] | None = None
        self.input = input
        self._prediction: PredictFunction | None = None
        self._active: Run | None = None
        self._own_pipelines: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.journal = open_journal(record, self)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and progress: the others never return a strategy."""
        return True

    def callbacks(self, log_dir: str | None = None) -> list[keras.callbacks.Callback]:
        """Callbacks for `model.fit`: they check that there is a model to distribute, and data.

        A `tfdist.callbacks.StalenessMonitor` adds to the logs how stale the gradients were.

        Args:
            log_dir: a folder for TensorBoard, to which histograms of staleness are written.
        """
        return [TrainingChecks(self), StalenessMonitor(self, log_dir)]

    def staleness_report(self) -> StalenessReport:
        """How stale the gradients of the last `fit` were, and what was done about it."""
        return self.report

    def check_compiled(self, model: keras.Model) -> None:
        """Raises ValueError for what `compile` was asked for and the strategy cannot do."""
        for name in ("jit_compile", "run_eagerly"):
            if getattr(model, name):
                raise ValueError(
                    "A worker runs a step as a function of TensorFlow. Compile with "
                    f"`{name}=False` or leave it out. Received: {name}=True"
                )

    # Data

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Data for Keras' loops; see `tf.distribute.Strategy`.

        Raises:
            ValueError: when `dataset` is known to be empty.
        """
        if not tf.executing_eagerly():  # what a ClusterCoordinator runs on a worker
            return super().experimental_distribute_dataset(dataset, options)
        check_not_empty(dataset)
        own = self._own_pipelines.get(dataset)
        data = DistributedData(dataset, own, self)
        self._batch_specs[data] = dataset.element_spec
        return data

    def shards_of(self, dataset: tf.data.Dataset) -> SerializedDataset | None:
        """The parts of a data set that workers read; None where the chief reads all.

        Raises:
            ValueError: for data that only the chief can read, unless it does.
        """
        if self.input == "dynamic":
            return None
        return SerializedDataset(dataset, self.num_workers)

    def distribute_datasets_from_function(self, dataset_fn: Callable, options: Any = None) -> Any:
        """Distributes data that the user divides; see `tf.distribute.Strategy`.

        Args:
            dataset_fn: called for each worker with a `tf.distribute.InputContext`; returns its data
                set of batches, which it reads itself. `evaluate` and `predict` read all of them,
                one after the other, in the chief.
            options: is used only in functions that a `ClusterCoordinator` runs on workers.
        """
        if not tf.executing_eagerly():
            return super().distribute_datasets_from_function(dataset_fn, options)
        pipelines = OwnPipelines(dataset_fn, self.num_workers)
        dataset = pipelines.joined()
        self._own_pipelines[dataset] = pipelines
        return dataset

    # Runs

    def run(
        self, fn: Callable, args: tuple = (), kwargs: dict | None = None, options: Any = None
    ) -> Any:
        """Runs `fn`; see `tf.distribute.Strategy.run`.

        Raises:
            ValueError: for Keras' own step of training, which runs on workers in `fit`.
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
        """Surrounds `fit`, `evaluate` or `predict` of `model`, as `name` says."""
        kinds = {"fit": TrainFunction, "evaluate": TestFunction, "predict": PredictFunction}
        attribute = {"fit": "train", "evaluate": "test", "predict": "predict"}[name] + "_function"
        if name == "fit":
            self.report = StalenessReport()
        function = getattr(model, attribute)
        if not isinstance(function, kinds[name]):
            function = kinds[name](self, model)
            setattr(model, attribute, function)
        outer = self._prediction
        self._prediction = function if isinstance(function, PredictFunction) else None
        try:
            with self.journal.fit(function) if name == "fit" else contextlib.nullcontext():
                yield
        except Exception as error:
            explained = errors.explained(error, self.addresses, self.timeout)
            raise explained from (error if explained is not error else error.__cause__)
        finally:
            self._prediction = outer
            function.close()

    def prepare(self, model: keras.Model) -> None:
        """Checks and completes what the scope and `compile` could not yet see."""
        layers = compat.flatten_layers(model)
        check_model_scope(model, layers, self)
        wrapping.wrap_optimizers(model)
        if self.policies.synchronous and self.num_workers > 1:
            check_layers(layers, self.num_workers)
            check_no_synchronized_layers(layers)
            keras_steps.warn_of_unsynchronized_layers(model)

    def check_applied(self, optimizers: Sequence[DistributedOptimizer]) -> None:
        """Raises ValueError for optimizers that a step applies and the strategy cannot."""
        for optimizer in optimizers:
            check_optimizer(optimizer.unwrap(), optimizer.built_for)
            if optimizer.options != self.options:
                raise ValueError(
                    "Under a parameter server the options of accumulation and compression are the "
                    "strategy's. Make the optimizer without them. "
                    f"Received: {optimizer.name} with {optimizer.options}"
                )

    def activate(self, run: Run) -> None:
        """Ends what workers do for another run, as a worker does one thing at a time."""
        if self._active is not None:
            self._active.close()
        self._active = run

    @property
    def prediction(self) -> PredictFunction | None:
        """What predicts, while `predict` runs."""
        return self._prediction

    def note(self, worker: int, error: Exception | None) -> None:
        """Logs that a worker is lost, or is back."""
        errors.log_change(self.addresses["worker"], worker, error)

    def note_wait(self, worker: int) -> None:
        """Counts that a worker has to wait, before a step of training or with the result of it."""
        self.report.worker(worker).waits += 1


def _check_momentum(options: Options, policies: Policies) -> None:
    """Raises ValueError where a compressor's momentum would count micro-batches as updates."""
    with_momentum = options.compression and [
        compressor for compressor in options.compression.compressors if compressor.keeps_momentum
    ]
    if with_momentum and policies.synchronous and options.accumulation_steps > 1:
        raise ValueError(
            "With staleness.Synchronous() each micro-batch is sent by itself, so a compressor that "
            "keeps the momentum would apply it accumulation_steps times per update. Use "
            "`accumulation_steps=1`, or DGC(momentum=0.0) with the optimizer's momentum. Received: "
            f"{with_momentum} with accumulation_steps={options.accumulation_steps}"
        )


hooks.install(ParameterServerStrategy)
