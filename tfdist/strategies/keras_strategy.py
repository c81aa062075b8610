"""What all of tfdist's strategies share: their models run in Keras' own methods."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.callbacks.checks import TrainingChecks
from tfdist.callbacks.live import live
from tfdist.callbacks.run_report import RunReport
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import Options
from tfdist.parameter_server.partitions import joined
from tfdist.processes import hooks
from tfdist.processes.files import CallbackFiles
from tfdist.step import collection, end_of_data, inside_keras
from tfdist.step.parts import StepParts
from tfdist.strategies import before_fit, wrapping
from tfdist.strategies.building import build_by_step
from tfdist.structures import Structure


class KerasStrategy(tf.distribute.Strategy if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixed in before a `tf.distribute.Strategy`.

    Attributes:
        options: the `tfdist.Options` that the strategy was made with.
        callback_files: the files of the callbacks, for each run that is under way.
        replicas_hold_model: whether each replica has all variables, and makes whole steps.
        is_evaluator: whether this process is the evaluator of a cluster: it does not train.
    """

    replicas_hold_model: bool = False
    is_evaluator: bool = False
    options: Options
    callback_files: list[CallbackFiles]

    def _init_options(self, options: Options) -> None:
        self.options = options
        self.callback_files = []
        self._batch_specs: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def __deepcopy__(self, memo: dict) -> KerasStrategy:
        """This object: a copy of a callback, as KerasTuner makes for each trial, has it too."""
        return self

    @property
    def compiles_replicas(self) -> bool:
        """Whether `jit_compile=True` compiles what each replica computes, not Keras' functions."""
        return False

    @property
    def is_multi_process(self) -> bool:
        """Whether several processes run the script and have to agree."""
        return False

    @contextlib.contextmanager
    def scope(self) -> Iterator[tf.distribute.Strategy]:
        """A context in which models, optimizers and metrics are made for this strategy.

        Raises:
            RuntimeError: when the scope of another strategy is active.
        """
        active = tf.distribute.get_strategy() if tf.distribute.has_strategy() else self
        if active is not self:
            raise RuntimeError(
                "The scope of another strategy is active; leave it first, as variables belong to "
                f"one strategy. Received: {type(active).__name__} is active, and the scope of "
                f"{type(self).__name__} was to be entered"
            )
        with super().scope():
            yield self

    def unwrap(self, model: keras.Model) -> keras.optimizers.Optimizer | None:
        """The plain Keras optimizer that `model` was compiled with, in its current state."""
        optimizer = model.optimizer
        return optimizer.unwrap() if isinstance(optimizer, DistributedOptimizer) else optimizer

    def note_compiled(self, model: keras.Model) -> None:
        """Takes note that `model` was compiled."""

    def check_compiled(self, model: keras.Model) -> None:
        """Raises ValueError if `compile` was asked for what the strategy cannot do."""
        if model.jit_compile and self.compiles_replicas and self.options.balance:
            raise ValueError(
                "With `balance=True` the parts of a batch change their sizes, and XLA compiles "
                "anew for each size. Compile with `jit_compile=False`, or leave out `balance`. "
                "Received: jit_compile=True, balance=True with several replicas"
            )
        in_parts = self.options.sharded(self.num_replicas_in_sync) == "parameters"
        if model.jit_compile and in_parts:
            raise ValueError(
                'With `sharding="parameters"` replicas exchange weights within a step, which XLA '
                "cannot compile. Compile with `jit_compile=False`, or take another `sharding`. "
                "Received: jit_compile=True, sharding='parameters' with several replicas"
            )
        if model.jit_compile and self.options.offload is not None:
            raise ValueError(
                "With `offload` a step runs on the device and on its host, which XLA cannot "
                "compile. Compile with `jit_compile=False`, or leave out `offload`. "
                f"Received: jit_compile=True, offload={self.options.offload!r}"
            )
        local = getattr(self, "local", None)
        if model.jit_compile and self.compiles_replicas and local is not None:
            raise ValueError(
                "Replicas that train apart (`local`) cannot be compiled yet. Compile with "
                "`jit_compile=False`, or leave out `local`. "
                f"Received: jit_compile=True, local={local}"
            )

    def batch_spec(self, dataset: tf.data.Dataset) -> Structure:
        """The type specs of a batch of `dataset`, if this strategy distributed it; else None."""
        return self._batch_specs.get(dataset)

    def reduce_per_replica(self, values: Structure, reduction: str) -> Any:
        """Reduces a step's results `values` for Keras' trainer; None for Keras' own reduction.

        Args:
            values: a structure of what `run` returned.
            reduction: "auto" for logs, "concat" for predictions.
        """
        return None

    def callbacks(
        self, log_dir: str | os.PathLike | None = None, report: str | os.PathLike | None = None
    ) -> list[keras.callbacks.Callback]:
        """Callbacks for `model.fit`: they check that the model is in this scope and has data.

        With `local` there is also `tfdist.callbacks.Drift`, and with parameter servers
        `tfdist.callbacks.StalenessMonitor`, which logs how stale the gradients were.

        Args:
            log_dir: a folder for TensorBoard, for the histograms of staleness, and
            report: the path of a page about the run: either adds `tfdist.callbacks.RunReport`.
        """
        found = [TrainingChecks(self), *self.monitors(log_dir)]
        return found if log_dir is report is None else [*found, RunReport(report, log_dir)]

    def monitors(self, log_dir: str | os.PathLike | None) -> list[keras.callbacks.Callback]:
        """What shows how replicas train under this strategy; a part of `callbacks`.

        Args:
            log_dir: a folder for TensorBoard; None for none.
        """
        return []

    def callbacks_of_runs(self) -> list[keras.callbacks.Callback]:
        """Callbacks that are added to those of every `fit`, `evaluate` and `predict`."""
        return live()

    def callbacks_around_others(
        self, others: list[keras.callbacks.Callback]
    ) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
        """Callbacks of every run that come before all `others`, and those that come after them."""
        return [], []

    def finish_rounds(self) -> None:
        """Called before anything looks at the weights of a model; by all processes."""

    def measure_parts(self, model: keras.Model) -> StepParts | None:
        """Makes train steps of `model` sum up where their time goes; None if they cannot."""
        return None

    def stop_parts(self, model: keras.Model) -> None:
        """Makes the train steps of `model` be what they were."""

    def stop_watching(self) -> None:
        """Called where an exception may have stopped callbacks in a run."""

    def trace_anew(self, model: keras.Model) -> None:
        """Makes the next train step of `model` contain what callbacks have added to steps."""
        model.make_train_function(force=True)

    def compare_reading(self, what: str) -> None:
        """Called now and then while Python reads distributed data.

        Args:
            what: what was read, for a message.
        """


def _is_ours(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, KerasStrategy)


def _compare_reading(strategy: tf.distribute.Strategy, what: str) -> None:
    if _is_ours(strategy):
        strategy.compare_reading(what)


def _reduce_per_replica(strategy: tf.distribute.Strategy, values: Structure, reduction: str) -> Any:
    return strategy.reduce_per_replica(values, reduction) if _is_ours(strategy) else None


def _make_function(model: keras.Model, make: Callable[[], object]) -> object:
    """Makes one of Keras' functions of `model`; not compiled, where replicas are compiled."""
    strategy = model.distribute_strategy
    if _is_ours(strategy):
        strategy.check_compiled(model)  # the attribute may have been set after `compile`
    if not _is_ours(strategy) or not strategy.compiles_replicas or not model.jit_compile:
        return make()
    model.jit_compile = False
    try:
        return make()
    finally:
        model.jit_compile = True


@contextlib.contextmanager
def _refuse_training_in_evaluator(
    model: keras.Model, name: str, arguments: object
) -> Iterator[None]:
    """Surrounds `fit`, `evaluate` or `predict` of `model`; `name` says which."""
    if name == "fit" and getattr(model.distribute_strategy, "is_evaluator", False):
        raise ValueError(
            "The evaluator of a cluster does not train: it would train alone and write over the "
            "chief's files. Where `strategy.is_evaluator`, call `tfdist.SidecarEvaluator(model, "
            "data, checkpoint_dir).start()` instead of `fit`. Received: a call of fit in the task "
            "evaluator of TF_CONFIG"
        )
    yield


compat.install()
inside_keras.install(check_plain=wrapping.refuse_unwrapped, join=joined)
compat.hook_reduce_per_replica(_reduce_per_replica)
compat.hook_additions(lambda strategy: isinstance(strategy, collection.CollectsGradients))
compat.hook_functions(_make_function)
compat.hook_runs(end_of_data.of_run)
compat.hook_runs(_refuse_training_in_evaluator)
compat.hook_runs(before_fit.speak)
compat.hook_reading(_compare_reading)
compat.hook_end_of_data(end_of_data.advance)
compat.hook_compile(functools.partial(wrapping.compile_for_strategy, _is_ours))
compat.hook_symbolic_build(
    lambda strategy, dataset: strategy.batch_spec(dataset) if _is_ours(strategy) else None,
    lambda strategy, model, data: _is_ours(strategy) and build_by_step(strategy, model, data),
)
hooks.install(KerasStrategy)
