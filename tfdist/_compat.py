"""Every private attribute of TensorFlow and Keras that tfdist touches, and nothing else.

Keras 3 has no hook for what a strategy must know or change inside a training step, so some of its
functions are wrapped, once, when tfdist is imported. Each wrapper calls the original unchanged
unless a tfdist strategy is running the step. `tests/test_compat.py` fails by name when an
attribute disappears. Verified with Keras 3.10-3.15 and TensorFlow 2.20-2.21.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state as keras_global_state
from keras.src.backend.common import stateless_scope as keras_stateless_scope
from keras.src.backend.tensorflow import core as keras_tf_core
from keras.src.backend.tensorflow import nn as keras_tf_nn
from keras.src.backend.tensorflow import numpy as keras_tf_numpy
from keras.src.backend.tensorflow import optimizer as keras_tf_optimizer
from keras.src.backend.tensorflow import trainer as keras_tf_trainer
from keras.src.legacy.saving import legacy_h5_format as keras_legacy_saving
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer as keras_base_optimizer
from keras.src.random import seed_generator as keras_seed_generator
from keras.src.saving import saving_lib as keras_saving
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.trainers import trainer as keras_trainer
from keras.src.trainers.data_adapters import array_data_adapter as keras_array_adapter
from keras.src.trainers.data_adapters import py_dataset_adapter as keras_py_dataset_adapter
from keras.src.utils import rng_utils as keras_rng_utils
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    cross_device_utils,
    distribute_utils,
    input_lib,
    mirrored_strategy,
    parameter_server_strategy_v2,
    sharded_variable,
)
from tensorflow.python.distribute import values as tf_values
from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context
from tensorflow.python.eager import record

from tfdist import replica
from tfdist.stages import loss_tags, weighting
from tfdist.validation import check_exchangeable, check_normalizer, check_tape

__all__ = [
    "IndexedOptimizer",
    "MultiWorkerExtended",
    "OneReplicaExtended",
    "ParameterServerExtended",
    "PartitionedVariable",
    "SaveableState",
    "StateOfThread",
    "apply_weight_decay",
    "applying_reduced_gradients",
    "captured_tensor",
    "flatten_layers",
    "function_graph",
    "hook_callbacks",
    "hook_compile",
    "hook_end_of_data",
    "hook_load_weights",
    "hook_own_loops",
    "hook_reading",
    "hook_reduce_per_replica",
    "hook_runs",
    "hook_saving",
    "hook_single_batches",
    "hook_sums",
    "hook_symbolic_build",
    "hook_unwrapped_optimizer",
    "hook_variables",
    "initial_epoch",
    "install",
    "install_collectives",
    "keras_step",
    "model_strategy",
    "number_of_batches",
    "own_non_trainable_variables",
    "place_of_part",
    "resource_of",
    "run_after",
    "separate_collectives",
    "set_initial_epoch",
    "traced_function",
    "unbuilt_parts",
    "variables_to_build",
]


class SaveableState(KerasSaveable):
    """State of its own that Keras' saving finds as an attribute of an optimizer.

    Keras 3.0-3.15. A public base class would replace it.
    """

    def _obj_type(self) -> str:
        return "Optimizer"


# --- Keras' trainer -------------------------------------------------------------------------------


def hook_compile(hook: Callable[..., None]) -> None:
    """Makes `model.compile(...)` call `hook(model, compile, args, kwargs)` instead.

    `compile` is Keras' own method, bound. Why: the optimizer must be wrapped before anything loads
    its state or reads its attributes. Keras 3.10-3.15. A public "compiled" event would replace it.
    """
    original = keras_trainer.Trainer.compile

    @functools.wraps(original)
    def compile_with_hook(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        hook(self, functools.partial(original, self), args, kwargs)

    keras_trainer.Trainer.compile = compile_with_hook


def hook_symbolic_build(
    batch_spec: Callable[[Any, Any], Any], build_by_step: Callable[[Any, keras.Model, Any], bool]
) -> None:
    """Makes Keras build models from `batch_spec(strategy, data set)` instead of from a batch.

    `batch_spec` returns the structure of one batch as type specs, or None for Keras' own way. Why:
    Keras takes a batch from the data (which a generator never gives again) and averages it over
    the replicas, which fails for strings, sparse tensors and uneven parts. It calls the model,
    which a model with a step of its own need not support: `build_by_step(strategy, model, data)`
    is asked first, with a data set or one batch, and answers whether it has built the model.
    Keras 3.10-3.15. A trainer that builds from `element_spec`, by its step, would replace it.
    """
    trainer = keras_tf_trainer.TensorFlowTrainer
    original = trainer._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        data = data_batch if iterator is None else iterator._distributed_dataset
        if strategy is not None and build_by_step(strategy, self, data):
            return
        if iterator is not None and strategy is not None:
            spec = batch_spec(strategy, data)
            if spec is not None:
                unbuilt = _unbuilt_without_targets(self, spec)
                with strategy.scope(), _taken_as_built(unbuilt):
                    self._symbolic_build(data_batch=spec)
                return
        original(self, iterator=iterator, data_batch=data_batch)

    trainer._maybe_symbolic_build = _maybe_symbolic_build


def unbuilt_parts(model: keras.Model) -> list[Any]:
    """What Keras has not built yet of `model`, its layers, and the loss and metrics of `compile`.

    Keras 3.10-3.15. A public `built` of compiled losses and metrics would replace it.
    """
    parts = [*flatten_layers(model), model._compile_loss, model._compile_metrics]
    return [part for part in parts if part is not None and not part.built]


def _unbuilt_without_targets(model: keras.Model, batch_spec: Any) -> list[Any]:
    """The loss and metrics that Keras cannot build: its batches have no targets."""
    _, targets, _ = keras.utils.unpack_x_y_sample_weight(batch_spec)
    parts = [model._compile_loss, model._compile_metrics] if targets is None else []
    return [part for part in parts if part is not None and not part.built]


@contextlib.contextmanager
def _taken_as_built(parts: list[Any]) -> Iterator[None]:
    for part in parts:
        part.built = True
    try:
        yield
    finally:
        for part in parts:
            part.built = False


def keras_step(fn: Callable) -> tuple[keras.Model, str] | None:
    """The model and step name, if `fn` is what Keras' trainer passes to `Strategy.run`.

    Keras wraps the model's bound `train_step` or `test_step` with `functools.wraps`; for `predict`
    it is a closure over the model. Why: only Keras' own steps take the optimizer from the model,
    which may also be a layer with Keras' `Trainer` mixed in.
    Keras 3.10-3.15. A public argument of `Strategy.run` would replace it.

    Returns:
        `(model, name)` with name "train_step", "test_step" or "predict_step"; None for any other.
    """
    fn = _unwrapped(fn)
    model = getattr(fn, "__self__", None)
    if isinstance(model, keras_trainer.Trainer):
        return (model, fn.__name__) if fn.__name__ in ("train_step", "test_step") else None
    if getattr(fn, "__name__", "") == "one_step_on_data":
        model = inspect.getclosurevars(fn).nonlocals.get("self")
        if isinstance(model, keras_trainer.Trainer):
            return model, "predict_step"
    return None


def _unwrapped(fn: Callable) -> Callable:
    while True:
        inner = getattr(fn, "__wrapped__", None) or getattr(fn, "python_function", None)
        if inner is None:
            return fn
        fn = inner


def model_strategy(model: keras.Model) -> tf.distribute.Strategy | None:
    """The strategy in whose scope `model` was created, None for none.

    `distribute_strategy`, the public property, answers with the current one in that case. Keras
    3.10-3.15. A public property would replace it.
    """
    return model._distribute_strategy


def flatten_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """`model` and all layers below it, also those in lists and dicts. Keras 3.0-3.15.

    A public recursive `layers` would replace it.
    """
    return list(model._flatten_layers())


def own_non_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The variables that `layer` itself created as non-trainable. Keras 3.0-3.15.

    The public `non_trainable_variables` adds metrics, seeds and what the layers below hold.
    """
    return list(layer._non_trainable_variables)


_lengths: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def number_of_batches(dataset: tf.data.Dataset) -> int:
    """The cardinality of `dataset`, also of those that Keras makes of arrays and of a PyDataset.

    Their cardinality is unknown to TensorFlow, but not to Keras' adapters, which are made to note
    it. Why: processes that know the length need not ask each other in each step whether data are
    left.
    Keras 3.10-3.15. A data set with its cardinality set would replace it.
    """
    return _lengths.get(dataset, int(dataset.cardinality()))


def _note_lengths(adapter: Any) -> None:
    original = adapter.get_tf_dataset

    @functools.wraps(original)
    def get_tf_dataset(self: Any) -> tf.data.Dataset:
        dataset = original(self)
        if self.num_batches is not None:
            _lengths[dataset] = self.num_batches
        return dataset

    adapter.get_tf_dataset = get_tf_dataset


def hook_runs(context: Callable[..., contextlib.AbstractContextManager]) -> None:
    """Makes `fit`, `evaluate` and `predict` run inside `context(model, method name, arguments)`.

    Why: what several processes need around a run (one answer to Ctrl-C, errors that name the rank
    that failed) must not ask for a change of the user's script. Keras 3.10-3.15. A callback that
    sees exceptions would replace it.
    """
    trainer = keras_tf_trainer.TensorFlowTrainer

    def wrap(name: str) -> None:
        original = getattr(trainer, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            with context(self, name, signature.bind(self, *args, **kwargs).arguments):
                return original(self, *args, **kwargs)

        setattr(trainer, name, run)

    for name in ("fit", "evaluate", "predict"):
        wrap(name)


def hook_single_batches(hook: Callable[[keras.Model, str, dict[str, Any]], None]) -> None:
    """Calls `hook(model, method name, arguments)` before `train_on_batch` and its like begin.

    Why: processes compare what each of them was given. Keras 3.10-3.15. A callback for single
    batches would replace it.
    """
    trainer = keras_tf_trainer.TensorFlowTrainer

    def wrap(name: str) -> None:
        original = getattr(trainer, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
            hook(self, name, signature.bind(self, *args, **kwargs).arguments)
            return original(self, *args, **kwargs)

        setattr(trainer, name, on_batch)

    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        wrap(name)


def hook_reading(hook: Callable[[tf.distribute.Strategy, str], None]) -> None:
    """Calls `hook(strategy, what)` now and then while Python reads distributed data.

    `what` is "has read N batches", with 2, 4, 8 and so on up to 1024 and its multiples, or "has
    read all batches". One batch alone may be a look at the data. Why: processes compare their data
    in loops of the user's own. TensorFlow 2.20-2.21. A public class of distributed iterators would
    replace it.
    """
    iterator = input_lib.DistributedIteratorBase
    original = iterator.get_next
    counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def get_next(self: Any, name: Any = None) -> Any:
        if not tf.executing_eagerly():
            return original(self, name)
        try:
            batch = original(self, name)
        except tf.errors.OutOfRangeError:
            hook(self._strategy, "has read all batches")
            raise
        count = counts[self] = counts.get(self, 0) + 1
        if count > 1 and (count % 1024 == 0 or (count < 1024 and not count & (count - 1))):
            hook(self._strategy, f"has read {count} batches")
        return batch

    iterator.get_next = get_next


def hook_end_of_data(hook: Callable[[], None]) -> None:
    """Calls `hook()` when a step of Keras' loops found no batch because the data had ended.

    With `steps_per_execution` > 1 Keras asks before it starts a step, so it is not called. Why: see
    `strategies/end_of_data.py`. Keras 3.10-3.15. A loop that always asks would replace it.
    """
    epoch_iterator = keras_tf_trainer.TFEpochIterator
    original = epoch_iterator.catch_stop_iteration

    @contextlib.contextmanager
    def catch_stop_iteration(self: Any) -> Iterator[None]:
        with original(self):
            try:
                yield
            except tf.errors.OutOfRangeError:
                hook()
                raise

    epoch_iterator.catch_stop_iteration = catch_stop_iteration


def hook_callbacks(hook: Callable[[keras.callbacks.CallbackList, keras.Model], bool]) -> None:
    """Calls `hook(callback list, model)` before Keras gives the callbacks their model.

    Where it answers True, Keras calls the callbacks in the training thread: collectives must come
    in one order. Why: processes must agree on what callbacks decide, and one of them
    writes files and progress. Keras 3.10-3.15. A public hook for default callbacks would
    replace it.
    """
    original = keras.callbacks.CallbackList.set_model

    @functools.wraps(original)
    def set_model(self: Any, model: Any) -> None:
        if model and hook(self, model):
            self._async_train = self._async_test = self._async_predict = False
        original(self, model)

    keras.callbacks.CallbackList.set_model = set_model


def initial_epoch(model: keras.Model) -> int:
    """The epoch that a callback made `fit` start with, 0 for none. Keras 3.10-3.15.

    BackupAndRestore communicates with `fit` by it; a public property would replace it.
    """
    return model._initial_epoch or 0


def set_initial_epoch(model: keras.Model, epoch: int) -> None:
    """Sets the epoch that `fit` starts with; see `initial_epoch`."""
    model._initial_epoch = epoch or None


def hook_reduce_per_replica(hook: Callable[[Any, Any, str], Any]) -> None:
    """Makes Keras reduce what a step returns with `hook(strategy, values, reduction)`.

    It answers None to leave it to Keras. Why: Keras reduces logs with a collective operation per
    value and step under MultiWorkerMirrored (and fails for scalars), and knows no other strategy
    of several processes. Keras 3.10-3.15. A public method of the strategy would replace it.
    """
    original = keras_tf_trainer.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        reduced = hook(strategy, values, reduction)
        return original(values, strategy, reduction) if reduced is None else reduced

    keras_tf_trainer.reduce_per_replica = reduce_per_replica


def hook_saving(hook: Callable[[keras.Model, Any, Callable[[Any], Any]], Any]) -> None:
    """Makes Keras call `hook(model, path, write)` where it writes a model or weights to `path`.

    `write(path)` is Keras' own; `path` is None for weights in several files (`max_shard_size`).
    Why: of several processes one must write, and whole files only, in scripts and callbacks that
    know nothing of it. Keras 3.10-3.15. A public hook of the saving library would replace it.
    """

    def wrap(module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("max_shard_size") or (name == "save_weights_only" and args and args[0]):
                return hook(model, None, lambda _: original(model, filepath, *args, **kwargs))
            return hook(model, filepath, lambda path: original(model, path, *args, **kwargs))

        setattr(module, name, save)

    wrap(keras_saving, "save_model")
    wrap(keras_saving, "save_weights_only")
    wrap(keras_legacy_saving, "save_model_to_hdf5")
    wrap(keras.Model, "export")


def hook_load_weights(hook: Callable[[keras.Model, Callable[[], None]], None]) -> None:
    """Makes `model.load_weights(...)` call `hook(model, load)`; `load` is Keras' own, bound.

    `load_weights` is public, replacing it is not. Why: a file may be seen by one process only.
    """
    original = keras.Model.load_weights

    @functools.wraps(original)
    def load_weights(self: Any, *args: Any, **kwargs: Any) -> None:
        hook(self, functools.partial(original, self, *args, **kwargs))

    keras.Model.load_weights = load_weights


# --- Keras' optimizers ----------------------------------------------------------------------------

_applying = threading.local()
_unwrapped_optimizer_hooks: list[Callable[[keras.optimizers.Optimizer], None]] = []


@contextlib.contextmanager
def applying_reduced_gradients() -> Iterator[None]:
    """In this thread, Keras optimizers take the gradients that they are given as reduced.

    Why: `Optimizer.apply` is the only code that does all that an optimizer does (Nadam's running
    product, EMA, constraints, weight decay), and it reduces gradients after clipping them.
    Keras 3.10-3.15. Keras 2's `skip_gradients_aggregation` argument would replace it.
    """
    _applying.active = True
    try:
        yield
    finally:
        _applying.active = False


def hook_unwrapped_optimizer(hook: Callable[[keras.optimizers.Optimizer], None]) -> None:
    """Calls `hook(optimizer)` when one that would reduce gradients is applied in a tfdist step."""
    _unwrapped_optimizer_hooks.append(hook)


class IndexedOptimizer(keras.optimizers.Optimizer):
    """An optimizer that knows its variables by their positions, as Keras' own do.

    Keras looks variables up in these attributes, also in optimizers that build nothing themselves.
    Keras 3.0-3.15; a public way to name the variables that an optimizer is for would replace them.
    """

    def _set_built_for(self, variables: list[keras.Variable]) -> None:
        for index, variable in enumerate(variables):
            self._trainable_variables_indices[self._var_key(variable)] = index
        self.__dict__["_trainable_variables"] = list(variables)
        self.built = True

    def _index_of(self, variable: keras.Variable) -> int:
        """The position of `variable`; -1 for one that the optimizer was not built for."""
        return self._trainable_variables_indices.get(self._var_key(variable), -1)

    @property
    def built_for(self) -> list[keras.Variable]:
        """The trainable variables that the optimizer was built for, in their order."""
        return list(self._trainable_variables)


def apply_weight_decay(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]
) -> None:
    """Decays `variables` as `optimizer` does, which may have a rule of its own (Muon).

    Why: a wrapper inherits Keras' rule. Keras 3.10-3.15; a public method would replace it.
    """
    optimizer._apply_weight_decay(variables)


def variables_to_build(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables that a built `optimizer` was built for. Keras 3.0-3.15; none public."""
    return list(optimizer._trainable_variables)


def _wrap_optimizer() -> None:
    optimizer_class = keras_tf_optimizer.TFOptimizer
    apply = keras_base_optimizer.BaseOptimizer.apply
    reduce_gradients = optimizer_class._all_reduce_sum_gradients
    overwrite = optimizer_class._overwrite_model_variables_with_average_value
    overwrite_locally = (
        keras_base_optimizer.BaseOptimizer._overwrite_model_variables_with_average_value
    )

    @functools.wraps(reduce_gradients)
    def _all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        if getattr(_applying, "active", False):
            return list(grads_and_vars)
        return reduce_gradients(self, grads_and_vars)

    # The first thing: in a step that runs as a function, what follows fails in other ways.
    @functools.wraps(apply)
    def apply_with_hooks(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        step = replica.current()
        if step is not None and not getattr(_applying, "active", False):
            for hook in _unwrapped_optimizer_hooks:
                hook(self)
            grads = list(grads)
            loss_tags.refuse_unweighted(grads)
            if step.own_loop and not step.empty_counts:
                grads = weighting.of_samples(grads, step.share)
        return apply(self, grads, *args, **kwargs)

    # Keras' TensorFlow version updates all replicas at once, which TensorFlow forbids inside the
    # condition that Keras puts around it; the base class updates the running replica's copy.
    @functools.wraps(overwrite)
    def _overwrite_model_variables_with_average_value(self: Any, variables: Any) -> None:
        if getattr(_applying, "active", False):
            overwrite_locally(self, variables)
        else:
            overwrite(self, variables)

    keras_base_optimizer.BaseOptimizer.apply = apply_with_hooks
    optimizer_class._all_reduce_sum_gradients = _all_reduce_sum_gradients
    optimizer_class._overwrite_model_variables_with_average_value = (
        _overwrite_model_variables_with_average_value
    )


@contextlib.contextmanager
def outside_stateless_scope() -> Iterator[None]:
    """Leaves Keras' `StatelessScope` for a while, to make variables. Keras 3.10-3.15.

    A public way to make variables inside of one would replace it.
    """
    scope = keras_stateless_scope.get_stateless_scope()
    keras_global_state.set_global_attribute("stateless_scope", None)
    try:
        yield
    finally:
        keras_global_state.set_global_attribute("stateless_scope", scope)


@contextlib.contextmanager
def scaled_learning_rate(factor: tf.Tensor) -> Iterator[None]:
    """In this thread, Keras optimizers update with their learning rate times `factor`.

    Why: a stale gradient counts less, but gradients cannot be scaled instead, as Adam would undo
    it. Keras 3.10-3.15. A learning rate as an argument of `Optimizer.apply` would replace it.
    """
    _applying.factor = factor
    try:
        yield
    finally:
        _applying.factor = None


def _wrap_learning_rate() -> None:
    optimizer_class = keras_base_optimizer.BaseOptimizer
    original = optimizer_class._get_current_learning_rate

    @functools.wraps(original)
    def _get_current_learning_rate(self: Any) -> Any:
        rate = original(self)
        factor = getattr(_applying, "factor", None)
        if factor is None:
            return rate
        rate = tf.convert_to_tensor(rate)
        return rate * tf.cast(factor, rate.dtype)

    optimizer_class._get_current_learning_rate = _get_current_learning_rate


# --- Keras' variables -----------------------------------------------------------------------------


def hook_variables(is_lifted: Callable[[tf.distribute.Strategy], bool]) -> None:
    """Makes Keras create variables outside of the function that is being traced.

    So it is done for the strategies for which `is_lifted` answers True. Why: a layer or an
    optimizer may be built in the first step of a user's own loop. Replicas and processes exchange
    the initial values, which as tensors of the function do not exist yet. Keras 3.10-3.15,
    TensorFlow 2.20-2.21. Variables that Keras itself lifts out of functions would replace it.
    """
    variable_class = keras_tf_core.Variable
    original = variable_class._initialize

    @functools.wraps(original)
    def _initialize(self: Any, value: Any) -> None:
        strategy = tf.distribute.get_strategy()
        inside = not tf.executing_eagerly() and not isinstance(value, tf.Variable)
        if not inside or not is_lifted(strategy):
            original(self, value)
            return
        if not callable(value):
            number = tf.get_static_value(value)
            if number is None:
                raise ValueError(
                    "A variable that is made inside a `tf.function` needs an initial value that "
                    "does not depend on the function's data. Make the variable before, in "
                    f"`strategy.scope()`. Received: {self.path} with the initial value {value}"
                )
            value = number
        with tf.init_scope():
            original(self, value)

    variable_class._initialize = _initialize


# --- Keras' losses --------------------------------------------------------------------------------


def _wrap_losses() -> None:
    """Gives losses their true normalizer, and no factor of 1/replicas.

    Keras 3.10-3.15. A public hook for the distributed loss scale would replace it.
    """
    scale = keras_loss.scale_loss_for_distribution
    unscale = keras_loss.unscale_loss_for_distribution
    reduce_weighted_values = keras_loss.reduce_weighted_values

    @functools.wraps(scale)
    def scale_loss_for_distribution(value: Any) -> Any:
        return scale(value) if replica.current() is None else value

    @functools.wraps(unscale)
    def unscale_loss_for_distribution(value: Any) -> Any:
        step = replica.current()
        if step is None:
            return unscale(value)
        if not step.own_loop:
            value = _losses.as_mean(step, tf.convert_to_tensor(value))
        if step.share.nonempty is not None:
            value = tf.math.multiply_no_nan(value, tf.cast(step.share.nonempty, value.dtype))
        return value

    @functools.wraps(reduce_weighted_values)
    def reduce_weighted_values_globally(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = reduce_weighted_values(values, sample_weight, mask, reduction, dtype)
        step = replica.current()
        is_scalar = len(getattr(values, "shape", ())) == 0
        if step is None or reduction in (None, "none") or is_scalar:
            return loss
        loss = tf.reduce_sum(loss)  # a scalar, but Keras leaves the losses of no sample a vector
        weights = mask if reduction in ("mean", "sum_over_batch_size") else None
        if reduction == "mean_with_sample_weight":
            weights = keras_loss.apply_mask(sample_weight, mask, tf.float32, reduction)
        normalizer = None if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
        if normalizer is not None:
            check_normalizer(reduction, mask is not None, step)
        loss = weighting.with_global_normalizer(step.share, loss, reduction, normalizer)
        return loss_tags.tag(loss, loss_tags.LOSS)

    keras_loss.scale_loss_for_distribution = scale_loss_for_distribution
    keras_loss.unscale_loss_for_distribution = unscale_loss_for_distribution
    keras_loss.reduce_weighted_values = reduce_weighted_values_globally


# --- Keras' metrics -------------------------------------------------------------------------------


def _wrap_mean_metric() -> None:
    """Weights a scalar in a `Mean` metric by the replica's share, as it is a mean over its part.

    So train steps of users track their loss, and Keras the losses of several outputs: without a
    `sample_weight`, every replica would count alike, and one without samples with a NaN. Keras
    3.0-3.15. Samples counted by Keras itself, as for the total loss, would replace it.
    """
    update = keras.metrics.Mean.update_state

    @functools.wraps(update)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = replica.current()
        if step is not None and sample_weight is None:
            values = tf.convert_to_tensor(values)
            is_mean = values.shape.rank == 0 and values.dtype.is_floating
            if is_mean and step.own_loop:
                is_mean = not _losses.is_part_of_sum(step, values)
            elif is_mean:
                values = _losses.as_mean(step, values)
            if is_mean and step.share.nonempty is not None:
                weight = tf.cast(step.share.fraction * step.replicas, values.dtype)
                values = tf.math.multiply_no_nan(values, weight)
        return update(self, values, sample_weight)

    keras.metrics.Mean.update_state = update_state


# --- Keras' random numbers ------------------------------------------------------------------------

_GOLDEN_RATIO = 0x9E3779B9


def _wrap_seed_generator() -> None:
    """Gives each replica random numbers of its own; replica 0 draws what one device would.

    Keras keeps one seed state, equal on all replicas, so every replica would draw the same dropout
    mask. `SeedGenerator` is public, replacing its `next` is not. Keras 3.0-3.15. A replica-aware
    `SeedGenerator` would replace it. The multiplier is Knuth's (TAOCP vol. 3, section 6.4): it
    keeps the replicas' seeds apart from those that users choose, which are small numbers.
    """
    draw = keras_seed_generator.SeedGenerator.next

    @functools.wraps(draw)
    def next_for_replica(self: Any, ordered: bool = True) -> Any:
        seed = draw(self, ordered)
        step = replica.current()
        if step is None:
            return seed
        step.advances.append(functools.partial(draw, self, ordered))
        step.drawn.append(self.state)
        replica_id = tf.cast(step.replica_id, seed.dtype)
        offset = replica_id * tf.constant(_GOLDEN_RATIO, seed.dtype)
        return seed + tf.stack([offset, tf.zeros_like(offset)])

    keras_seed_generator.SeedGenerator.next = next_for_replica


_OF_THREADS = ("dtype_policy", keras_rng_utils.GLOBAL_RANDOM_SEED)
_SEED_GENERATOR = "global_seed_generator"

_thread = threading.local()


class StateOfThread:
    """What Keras keeps for each thread, and replicas need: random seeds and the dtype policy.

    Why: a strategy runs each replica in a thread of its own, in which Keras starts with its
    defaults. Keras 3.10-3.15. A state of Keras that is the process' would replace it.

    Args:
        strategy: whose replicas this thread runs.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._state = keras_global_state.GLOBAL_STATE_TRACKER.__dict__

    @contextlib.contextmanager
    def adopted(self) -> Iterator[None]:
        """Makes it the state of the thread that calls, which ends with it or has it already."""
        for name in _OF_THREADS:
            keras_global_state.set_global_attribute(name, self._state.get(name))
        _thread.origin = self
        try:
            yield
        finally:
            _thread.origin = None

    def seed_generator(self) -> keras.random.SeedGenerator:
        """What numbers without a seed are drawn from: made when the first one is, as by Keras.

        One that was made outside of the strategy's scope is continued by one that is of it.
        """
        found = self._state.get(_SEED_GENERATOR)
        is_ours = self._strategy.extended.variable_created_in_scope
        if found is None or not is_ours(found.state.value):
            # In a thread of its own no function is being traced, which would see a new variable.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                found = thread.submit(self._make_seed_generator, found).result()
            self._state[_SEED_GENERATOR] = found
        return found

    def _make_seed_generator(self, previous: Any) -> keras.random.SeedGenerator:
        state = None if previous is None else previous.state.numpy()
        with self._strategy.scope():
            if state is None:
                return keras.random.SeedGenerator()
            generator = keras.random.SeedGenerator(seed=0)
            generator.state.assign(state)
            return generator


def _wrap_global_seed_generator() -> None:
    """Lets replicas draw from the one generator of the thread that runs them: `StateOfThread`."""
    original = keras_seed_generator.global_seed_generator

    @functools.wraps(original)
    def global_seed_generator() -> keras.random.SeedGenerator:
        origin = getattr(_thread, "origin", None)
        return original() if origin is None else origin.seed_generator()

    keras_seed_generator.global_seed_generator = global_seed_generator


# --- Gradients of values --------------------------------------------------------------------------

_sources = threading.local()


@contextlib.contextmanager
def gradients_by_value(
    values: Mapping[int, list[tf.Tensor]], join: Callable[[list], Any]
) -> Iterator[None]:
    """In this thread, tapes differentiate by `values` where a Keras variable of that id is named.

    Why: inside a `keras.StatelessScope` a variable's value is a tensor, but `train_step` names the
    variable as the source of its gradients, which has no resource there. `tf.GradientTape` is
    public, replacing its methods is not. TensorFlow 2.20-2.21, Keras 3.10-3.15. A `StatelessScope`
    that tapes look into would replace it.

    Args:
        values: the values of each variable's parts, by its id.
        join: makes a variable's gradient of those of its parts.
    """
    previous = getattr(_sources, "values", None)
    _sources.values, _sources.join = values, join
    try:
        yield
    finally:
        _sources.values = previous


def _wrap_gradient_tape() -> None:
    enter, gradient = tf.GradientTape.__enter__, tf.GradientTape.gradient

    @functools.wraps(enter)
    def watch_values(self: Any) -> Any:
        tape = enter(self)
        values = getattr(_sources, "values", None)
        if values and self._watch_accessed_variables:
            tape.watch(tf.nest.flatten(list(values.values())))
        return tape

    @functools.wraps(gradient)
    def gradient_by_value(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        options = {"unconnected_gradients": unconnected_gradients}
        values = getattr(_sources, "values", None)
        step = replica.current()
        if step is not None:
            check_tape(self)
        if step is not None and not _losses.in_jacobian:
            if step.own_loop:
                return _own_gradient(
                    step, gradient, self, target, sources, output_gradients, **options
                )
            target, output_gradients = _sums_as_means(step, target, sources, output_gradients)
        if not values:
            return gradient(self, target, sources, output_gradients, **options)
        named = tf.nest.flatten(sources)
        by_value = [values.get(id(source), source) for source in named]
        found = [
            _sources.join(one) if isinstance(one, list) else one
            for one in gradient(self, target, by_value, output_gradients, **options)
        ]
        return tf.nest.pack_sequence_as(sources, found)

    jacobian = tf.GradientTape.jacobian

    @functools.wraps(jacobian)
    def jacobian_of_values(self: Any, *args: Any, **kwargs: Any) -> Any:
        _losses.in_jacobian = True
        try:
            return jacobian(self, *args, **kwargs)
        finally:
            _losses.in_jacobian = False

    tf.GradientTape.__enter__ = watch_values
    tf.GradientTape.gradient = gradient_by_value
    tf.GradientTape.jacobian = jacobian_of_values


def _sums_as_means(
    step: replica.ReplicaStep, target: Any, sources: Any, output_gradients: Any
) -> tuple[Any, Any]:
    """The targets of a Keras step, and the factors of their gradients: the share is for means.

    A loss of one value for each sample, as Keras' loss functions return it, has the sum over the
    samples for a gradient.
    """
    targets, named = tf.nest.flatten(target), tf.nest.flatten(sources)
    variables = [one for one in named if isinstance(one, (tf.Variable, keras.Variable))]
    if not variables or not all(isinstance(t, tf.Tensor) and t.dtype.is_floating for t in targets):
        return target, output_gradients
    given = [None] * len(targets)
    if output_gradients is not None:
        given = tf.nest.flatten(output_gradients)
    resources = {id(resource_of(variable)) for variable in variables}
    found: list[tuple[Any, Any]] = []
    with record.stop_recording():
        for one, gradient in zip(targets, given):
            terms = [(one, weighting.factor_of_sum(one, step.share))]
            if one.shape.rank == 0:
                terms = list(_losses.term_factors(step, one, resources)) or [(one, None)]
            found.extend((tensor, _product_of(factor, gradient)) for tensor, factor in terms)
        if all(factor is None for _, factor in found):
            return target, None
        factors = [tf.ones_like(tensor) if f is None else f for tensor, f in found]
    return [tensor for tensor, _ in found], factors


def _product_of(factor: Any, gradient: Any) -> Any:
    if factor is None or gradient is None:
        return gradient if factor is None else factor
    return factor * tf.cast(gradient, factor.dtype)


# --- Losses of users' own loops -------------------------------------------------------------------


class _Losses(threading.local):
    weigh_targets: Callable[..., tuple[list, list]]
    is_part_of_sum: Callable[..., bool]
    term_factors: Callable[..., Iterator[tuple]]
    as_mean: Callable[..., tf.Tensor]
    in_jacobian = False


_losses = _Losses()


def hook_own_loops(
    weigh_targets: Callable[..., tuple[list, list]], is_part_of_sum: Callable[..., bool]
) -> None:
    """Asks these what the losses of users' own loops are; see `strategies/own_loops.py`."""
    _Losses.weigh_targets = staticmethod(weigh_targets)
    _Losses.is_part_of_sum = staticmethod(is_part_of_sum)


def hook_sums(
    term_factors: Callable[..., Iterator[tuple]], as_mean: Callable[..., tf.Tensor]
) -> None:
    """Asks these what the losses of Keras' steps are; see `stages/loss_sums.py`."""
    _Losses.term_factors = staticmethod(term_factors)
    _Losses.as_mean = staticmethod(as_mean)


def _own_gradient(
    step: replica.ReplicaStep,
    gradient: Callable,
    tape: tf.GradientTape,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    **kwargs: Any,
) -> Any:
    """The gradient of the replica's part of the global loss.

    While another tape records it, a gradient is not the one that is applied, and is left as it is.
    Why: synchronized BatchNormalization needs the share in the loss, not in the gradient. The
    methods of `tf.GradientTape` are public, replacing them is not, nor is asking which tapes
    record. TensorFlow 2.20-2.21. A hook for the loss that a strategy differentiates would replace
    it.
    """
    targets = tf.nest.flatten(target)
    if not all(isinstance(one, tf.Tensor) for one in targets):
        return gradient(tape, target, sources, output_gradients, **kwargs)
    if _is_recorded(tape, targets):
        found = gradient(tape, target, sources, output_gradients, **kwargs)
        return tf.nest.map_structure(loss_tags.mark_unweighted, found)
    flat = [None] * len(targets)
    if output_gradients is not None:
        flat = tf.nest.flatten(output_gradients)
    with record.stop_recording():
        targets, flat = _losses.weigh_targets(step, targets, flat, tf.nest.flatten(sources))
    factors = [tf.ones_like(t) if f is None else f for t, f in zip(targets, flat)]
    return gradient(tape, targets, sources, factors, **kwargs)


def _is_recorded(tape: Any, targets: list) -> bool:
    if tape._recording:
        with tape.stop_recording():
            return _is_recorded(tape, targets)
    return record.should_record_backprop(targets)


def _wrap_losses_of_loops() -> None:
    """Tags the losses that TensorFlow's and Keras' functions make in the steps of a strategy.

    Without a `global_batch_size`, `compute_average_loss` takes all parts for equally large; here it
    divides by the true size. In Keras' steps regularization is not divided by the number of
    replicas, as their shares do that. A script that has imported the functions before tfdist has
    those of TensorFlow, whose results are told by their graphs. `Layer.losses` and the functions
    are public, replacing them is not. TensorFlow 2.20-2.21, Keras 3.10-3.15. A strategy that is
    asked for its share of a batch would replace it.
    """
    average, scale = tf.nn.compute_average_loss, tf.nn.scale_regularization_loss
    losses = keras.layers.Layer.losses

    @functools.wraps(average)
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        step = replica.current()
        if step is None:
            return average(per_example_loss, sample_weight, global_batch_size)
        if global_batch_size is not None:
            part = average(per_example_loss, sample_weight, global_batch_size)
            return loss_tags.tag(part, loss_tags.PART)
        per_example_loss = tf.convert_to_tensor(per_example_loss)
        mean = average(per_example_loss, sample_weight, tf.shape(per_example_loss)[0])
        if not step.own_loop:
            return loss_tags.tag(mean, loss_tags.LOSS)
        return loss_tags.tag(mean * tf.cast(step.share.fraction, mean.dtype), loss_tags.PART)

    @functools.wraps(scale)
    def scale_regularization_loss(regularization_loss: Any) -> Any:
        step = replica.current()
        if step is None:
            return scale(regularization_loss)
        if not step.own_loop:
            return tf.reduce_sum(regularization_loss)
        step.seen.discard(loss_tags.ADDED)
        return loss_tags.tag(scale(regularization_loss), loss_tags.SCALED)

    def tagged_losses(self: Any) -> list:
        found = losses.fget(self)
        step = replica.current()
        if step is None or not step.own_loop:
            return found
        return [loss_tags.tag(loss, loss_tags.ADDED) for loss in found]

    for module in (tf.nn, tf.compat.v1.nn, tf.compat.v2.nn):
        module.compute_average_loss = compute_average_loss
        module.scale_regularization_loss = scale_regularization_loss
    keras.layers.Layer.losses = property(tagged_losses, doc=losses.__doc__)


def captured_tensor(placeholder: tf.Tensor) -> Any:
    """What a function's placeholder stands for outside of the function, None for an argument.

    TensorFlow 2.20-2.21. A public link from a placeholder to what it captures would replace it.
    """
    for outside, inside in getattr(placeholder.graph, "captures", ()):
        if inside is placeholder:
            return outside
    return None


def resource_of(variable: Any) -> Any:
    """What functions capture of a variable; in a replica that of its own copy.

    Inside a `keras.StatelessScope`, where the variable's value is a tensor, it is this tensor.
    TensorFlow 2.20-2.21. A public link from a captured tensor to its variable would replace it.
    """
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return getattr(value, "handle", value)


def function_graph(graph: tf.Graph, name: str) -> Any:
    """The graph of a function that is called in `graph`, None where there is none.

    TensorFlow 2.20-2.21. A public look-up of functions by name would replace it.
    """
    return getattr(graph._get_function(name), "graph", None)


# --- Rows of values -------------------------------------------------------------------------------


def _wrap_take() -> None:
    """Lets a `keras.StatelessScope` with a method `rows` look up the rows of a variable.

    Why: an embedding needs few rows of a table, which need not travel as a whole. `keras.ops.take`
    is public, replacing what it calls is not. Keras 3.10-3.15. A `StatelessScope` that is asked for
    parts of a value would replace it.
    """
    original = keras_tf_numpy.take

    @functools.wraps(original)
    def take(x: Any, indices: Any, axis: int | None = None) -> Any:
        rows = getattr(keras_stateless_scope.get_stateless_scope(), "rows", None)
        composite = isinstance(indices, (tf.SparseTensor, tf.RaggedTensor))
        if rows is not None and axis == 0 and isinstance(x, keras.Variable) and not composite:
            found = rows(x, indices)
            if found is not None:
                return found
        return original(x, indices, axis)

    keras_tf_numpy.take = take


# --- Batches of no sample -------------------------------------------------------------------------


def _wrap_functions_of_empty_batches() -> None:
    """Lets Keras add batches of no sample, and take their maxima, in eager execution.

    Why: a replica without samples computes with tensors of shape (0, n), which `add` takes for a
    bias, and of which `max` and `min` say that they are empty. In functions Keras does not see
    it: `strategies/batches.py` hides the size. `keras.ops.add` and the others are public, replacing
    what they call is not. Keras 3.10-3.15. Functions that take empty batches would replace it.
    """
    add = keras_tf_numpy.add

    def is_empty(x: Any) -> bool:
        return isinstance(x, tf.Tensor) and bool(x.shape.rank) and x.shape[0] == 0

    @functools.wraps(add)
    def add_empty(x1: Any, x2: Any) -> Any:
        if replica.current() is None or not is_empty(x2):
            return add(x1, x2)
        return keras_tf_numpy.subtract(x1, x2)  # of nothing it is the same, by Keras' dtypes too

    def wrap_extremum(name: str, farthest: Callable[[tf.DType], Any]) -> None:
        original = getattr(keras_tf_numpy, name)

        @functools.wraps(original)
        def extremum(x: Any, axis: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
            if replica.current() is not None and is_empty(x) and initial is None:
                initial = farthest(x.dtype)
            return original(x, axis=axis, keepdims=keepdims, initial=initial)

        setattr(keras_tf_numpy, name, extremum)

    keras_tf_numpy.add = add_empty
    wrap_extremum("max", lambda dtype: dtype.min)
    wrap_extremum("min", lambda dtype: dtype.max)


def _wrap_functions_that_need_a_sample() -> None:
    """Lets a replica without samples convolve, and take the maximum of a neighbourhood.

    Why: on CPUs for which TensorFlow uses oneDNN, a convolution of no sample has the shape of its
    input, the gradient of a transposed one too, and the gradient of `max_pool` ends the process. So
    none of them ever sees a batch without samples: it gets one of zeros, of which no result is
    used. `keras.ops.conv` and the others are public, replacing what they call is not. TensorFlow
    2.20-2.21, Keras 3.10-3.15. A TensorFlow that computes with no sample would replace it.
    """

    def wrap(name: str) -> None:
        original = getattr(keras_tf_nn, name)

        @functools.wraps(original)
        def with_a_sample(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            step = replica.current()
            if step is None or step.replicas == 1 or isinstance(inputs, keras.KerasTensor):
                return original(inputs, *args, **kwargs)
            inputs = tf.convert_to_tensor(inputs)
            return _unless_empty(lambda values: original(values, *args, **kwargs), inputs)

        setattr(keras_tf_nn, name, with_a_sample)

    for name in (
        *("conv", "depthwise_conv", "separable_conv", "conv_transpose"),
        *("max_pool", "adaptive_max_pool"),
    ):
        if hasattr(keras_tf_nn, name):  # Keras has `adaptive_max_pool` since 3.14
            wrap(name)


def _unless_empty(function: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """`function(inputs)`; where `inputs` are no sample, what it makes of one, without that one."""

    def of_one_sample() -> tf.Tensor:
        zeros = tf.zeros(tf.concat([[1], tf.shape(inputs)[1:]], 0), inputs.dtype)
        zeros.set_shape([1, *inputs.shape[1:]])
        # Not `tf.pad`: oneDNN takes it for padding of the convolution, and ignores this dimension.
        return function(tf.concat([inputs, zeros], 0))[:0]

    if inputs.shape[0] is not None:
        return function(inputs) if inputs.shape[0] else of_one_sample()
    is_empty = tf.equal(tf.shape(inputs)[0], 0)
    return tf.cond(is_empty, of_one_sample, lambda: function(inputs))


# --- TensorFlow's parameter servers ---------------------------------------------------------------


def run_on_workers(coordinator: Any, function: Callable[[int, str], None], times: int) -> None:
    """Calls `function(index, device)` of a worker `times` times, in the threads of free workers.

    What it does under `device` runs on that worker. Where that fails because the worker is lost,
    the function is called again in another worker's thread, and the thread of the lost one waits
    until it is back; other errors are kept for `coordinator.join`.
    Why: `ClusterCoordinator.schedule` takes TensorFlow functions only, and does not tell which
    worker runs them. TensorFlow 2.20-2.21. Scheduling on a worker of one's choice would replace it.
    """

    def on_worker() -> None:
        worker = coordinator_context.get_current_dispatch_context().worker
        # What came to nothing when it was lost, as tensors were freed there, would fail again.
        worker.executor.clear_error()
        function(worker.worker_index, worker.device_name)

    for _ in range(times):
        coordinator._cluster.schedule(on_worker, (), {})


class Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    """A `ClusterCoordinator` that stays until the process ends.

    Why: TensorFlow's stops its threads when it is collected as garbage, and waits for locks: one
    that the very thread may hold in which garbage is collected, or one that is held while a lost
    worker is waited for, so that Python does not end. TensorFlow 2.20-2.21; a public way to stop
    it would replace this.
    """

    def __del__(self) -> None:
        """Leaves the threads, which end with the process."""


@contextlib.contextmanager
def as_worker(index: int) -> Iterator[None]:
    """Lets a step find itself on worker `index`, in a thread that is none of the coordinator's.

    Why: `tf.distribute.coordinator.experimental_get_current_worker_index` in a step must answer
    as in the run that is replayed. TensorFlow 2.20-2.21. A public context would replace it.
    """
    with coordinator_context.with_dispatch_context(types.SimpleNamespace(worker_index=index)):
        yield


def is_lost_worker(error: Exception) -> bool:
    """Whether TensorFlow takes `error` for the loss of a worker, after which it goes on.

    TensorFlow 2.20-2.21; its kind of error would replace it.
    """
    return cluster_coordinator._is_worker_failure(error)


def is_lost_ps(error: Exception) -> bool:
    """Whether TensorFlow takes `error` for the loss of a parameter server; see `is_lost_worker`."""
    return cluster_coordinator._is_ps_failure(error)


def captured_from(tensor: tf.Tensor) -> str:
    """The device of what a function takes `tensor` from; "" where that is not known.

    Why: operations are put where their variables are, before TensorFlow's placer does. TensorFlow
    2.20-2.21; the device as an attribute of a captured resource would replace it.
    """
    for outside, inside in getattr(tensor.graph, "captures", ()):
        if inside is tensor:
            return outside.device
    return ""


def allow_functions_of_coordinator(strategy: tf.distribute.Strategy) -> None:
    """Lets the coordinator itself run functions with `strategy.run`, without a warning.

    Why: it runs the updates, on the parameter servers. TensorFlow 2.20-2.21; a public option would
    replace it.
    """
    strategy.extended._allow_run_without_coordinator = True


class PartitionedVariable(sharded_variable.ShardedVariable):
    """A variable in parts, as TensorFlow's `ShardedVariable`, that is saved like a whole one.

    Why: Keras converts the values of its variables to arrays, and TensorFlow's checkpoints of
    Keras variables ask for tensors. TensorFlow 2.20-2.21, Keras 3.10-3.15. The same methods in
    TensorFlow's class would replace it.

    Attributes:
        parts: Keras variables that stand for the parts; empty until somebody makes them.
    """

    def __init__(self, variables: list[tf.Variable], name: str):
        super().__init__(variables, name=name)
        self.parts: list[keras.Variable] = []

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy
        return self.numpy().astype(dtype, copy=False) if dtype is not None else self.numpy()

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": tf.convert_to_tensor(self)}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> Any:
        return self.assign(restored["VARIABLE_VALUE"])


def _joined(
    variable: PartitionedVariable, dtype: Any = None, name: Any = None, as_ref: bool = False
) -> tf.Tensor:
    del name, as_ref
    values = [tf.convert_to_tensor(part, dtype) for part in variable.variables]
    # In the chief: a server cannot ask another one for its part.
    with tf.device("/device:CPU:0"):
        return tf.concat(values, axis=0)


tf.register_tensor_conversion_function(PartitionedVariable, _joined, priority=50)


def place_of_part(variable: tf.Variable) -> int | None:
    """Which part of a `PartitionedVariable` `variable` is; None for no part.

    TensorFlow 2.20-2.21. A public link from a part to the whole would replace it.
    """
    whole = _whole(variable)
    if whole is variable:
        return None
    return next(place for place, part in enumerate(whole.variables) if part is variable)


def _whole(variable: Any) -> Any:
    container = getattr(variable, "_sharded_container", None)
    return variable if container is None else container()


class ParameterServerExtended(parameter_server_strategy_v2.ParameterServerStrategyV2Extended):
    """TensorFlow's parameter server strategy, whose partitioned variables optimizers can update.

    TensorFlow partitions every variable, also counters, seeds and metrics of which nothing is
    gained, and no variable beside another one, so that the state of an optimizer would be far from
    the part that it is for. TensorFlow 2.20-2.21. Public hooks would replace it.

    Args:
        strategy: the `tf.distribute.Strategy` that this extends.
        cluster_resolver: as in `tf.distribute.ParameterServerStrategy`.
        variable_partitioner: as there.
    """

    _variable_partitioner: Any

    def updating_part(self, place: int) -> contextlib.AbstractContextManager:
        """What surrounds the update of a part of a variable, the `place`-th."""
        raise NotImplementedError

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        create = super()._create_variable
        reference = kwargs.get("colocate_with")
        name = kwargs.get("name") or "Variable"
        if isinstance(reference, PartitionedVariable):
            parts = []
            start = 0
            for place, part in enumerate(reference.variables):
                of_part = {
                    **kwargs,
                    "initial_value": _slice_of(kwargs["initial_value"], start, part.shape[0]),
                    "colocate_with": part,
                    "shape": part.shape,
                    "name": f"{name}/part_{place}",
                }
                parts.append(create(next_creator, **of_part))
                start += part.shape[0]
            return PartitionedVariable(parts, name)
        partitioner = self._variable_partitioner
        if not kwargs.get("trainable", True):
            self._variable_partitioner = None
        try:
            variable = create(next_creator, **kwargs)
        finally:
            self._variable_partitioner = partitioner
        if not isinstance(variable, sharded_variable.ShardedVariable):
            return variable
        return PartitionedVariable(variable.variables, name)

    def _update(self, var: Any, fn: Callable, args: tuple, kwargs: dict, group: bool) -> Any:
        if isinstance(var, PartitionedVariable):
            return [self._update(part, fn, args, kwargs, group) for part in var.variables]
        place = place_of_part(var)
        if place is None:
            return super()._update(var, fn, args, kwargs, group)
        with self.updating_part(place):
            return super()._update(var, fn, args, kwargs, group)


def _slice_of(value: Any, start: int, size: int) -> Callable[[], tf.Tensor]:
    return lambda: (value() if callable(value) else value)[start : start + size]


def _wrap_variable_key() -> None:
    """Makes Keras' optimizers know a part of a partitioned variable by the whole one.

    So they find the state for it. Keras 3.10-3.15. An optimizer that is asked for the place of a
    variable would replace it.
    """
    optimizer_class = keras_tf_optimizer.TFOptimizer
    original = optimizer_class._var_key

    @functools.wraps(original)
    def _var_key(self: Any, variable: Any) -> Any:
        value = variable.value if isinstance(variable, keras.Variable) else variable
        return original(self, _whole(value))

    optimizer_class._var_key = _var_key


# --- TensorFlow's distribution --------------------------------------------------------------------

_local_end_of_data = threading.local()

# TensorFlow copies what it sends into strings of so many bytes. Its default of 4096 takes an
# allocation for each page; above 128 KiB each is mapped anew.
_CHUNK_BYTES = 64 * 1024

# Called in all processes with the arguments of a variable that each is about to make; returns them,
# and whether the initial value is known to be the same in all.
BeforeCreating = Callable[[dict[str, Any]], tuple[dict[str, Any], bool]]


def _create_alone(arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    return arguments, False


# With fewer a link of 1 Gbit/s is idle now and then (benchmarks/side_by_side, 1 Gbit/s).
OPERATIONS_UNDER_WAY = 8


class MultiWorkerExtended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
    """TensorFlow's multi-worker strategy with virtual CPU devices and an adjustable heartbeat.

    TensorFlow takes one CPU device per worker and fixes the interval after which a silent worker
    counts as lost, and the size of the pieces in which it copies what it sends. It also runs one
    collective operation of a replica at a time, which NCCL needs; over gRPC the link would be idle
    whenever one of them adds or waits for the other worker, so several are under way there. And it
    sends the initial value of every variable, also of those that have the same everywhere.
    TensorFlow 2.20-2.21. Constructor arguments would replace it.

    Args:
        strategy: the `tf.distribute.Strategy` that this extends.
        cluster_resolver: as in `tf.distribute.MultiWorkerMirroredStrategy`.
        communication_options: as there.
        heartbeat_timeout_seconds: a worker that is silent for so long counts as lost.
    """

    # TensorFlow starts a server per strategy; the strategies of one process share one.
    _server_runs = False

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        communication_options: tf.distribute.experimental.CommunicationOptions,
        heartbeat_timeout_seconds: float,
    ):
        self._heartbeat_milliseconds = int(1000 * heartbeat_timeout_seconds)
        self._std_server_started = MultiWorkerExtended._server_runs
        self.before_creating: BeforeCreating = _create_alone
        self._is_equal = False
        super().__init__(strategy, cluster_resolver, communication_options)
        MultiWorkerExtended._server_runs = self._std_server_started
        if self._num_workers > 1:
            for launcher in self._cross_device_ops._launchers:
                if tf.DeviceSpec.from_string(launcher._device).device_type == "CPU":
                    launcher._ordering_token = _TakenInTurns(launcher)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple:
        devices, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
        cpu = tf.config.list_physical_devices("CPU")[0]
        virtual = len(tf.config.get_logical_device_configuration(cpu) or [None])
        if kind == "CPU":
            devices = tuple(f"{worker_device}/device:CPU:{index}" for index in range(virtual))
        return devices, kind

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        if self._num_workers > 1:
            check_exchangeable(kwargs.get("dtype"), kwargs.get("name"))
            kwargs, self._is_equal = self.before_creating(kwargs)
        return super()._create_variable(next_creator, **kwargs)

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Any:
        if replica_id == 0 and self._is_equal:
            return kwargs["initial_value"]  # the chief's need not travel
        return super()._get_variable_creator_initial_value(
            replica_id, device, primary_var, **kwargs
        )

    def _update_config_proto(self, config_proto: Any) -> Any:
        config = super()._update_config_proto(config_proto)
        coordination = config.experimental.coordination_config
        coordination.heartbeat_timeout_in_ms = self._heartbeat_milliseconds
        config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
        return config


class _TakenInTurns:
    """Stands for the variable by which TensorFlow orders a launcher's operations, with several.

    The operations that are given one of them run in their order. As these are the same in all
    processes, none can wait for one that comes later.
    """

    def __init__(self, launcher: Any):
        with tf.init_scope(), tf.device(launcher._device):
            more = [tf.Variable(0.0) for _ in range(OPERATIONS_UNDER_WAY - 1)]
        self._variables = itertools.cycle([launcher._ordering_token, *more])

    @property
    def handle(self) -> tf.Tensor:
        return next(self._variables).handle


class OneReplicaExtended(mirrored_strategy.MirroredExtended):
    """One replica on one local device, whose peers are other processes.

    Subclasses say how processes meet, with `all_reduce`, `all_gather` and `broadcast`. TensorFlow
    has no public way to write a strategy. TensorFlow 2.20-2.21.

    Args:
        strategy: the `tf.distribute.Strategy` that this extends.
        device: the local device.
        rank: this process among all, 0-based.
        size: the number of processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, device: str, rank: int, size: int):
        self._rank, self._size = rank, size
        self.before_creating: BeforeCreating = _create_alone
        super().__init__(strategy, [device], tf.distribute.ReductionToOneDevice())

    def all_reduce(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of `tensors` over the processes."""
        raise NotImplementedError

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The processes' tensors one after the other; their first dimensions may differ."""
        raise NotImplementedError

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor of process 0."""
        raise NotImplementedError

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._size

    def _in_multi_worker_mode(self) -> bool:
        return self._size > 1

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self._rank

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return 0

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints."""
        return self._rank == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries."""
        return self._rank == 0

    def _distribute_datasets_from_function(self, dataset_fn: Callable, options: Any) -> Any:
        context = tf.distribute.InputContext(self._size, self._rank, self._size)
        return super()._distribute_datasets_from_function(lambda _: dataset_fn(context), options)

    def _experimental_distribute_values_from_function(self, value_fn: Callable) -> Any:
        context = tf.distribute.experimental.ValueContext(self._rank, self._size)
        return distribute_utils.regroup((value_fn(context),), always_wrap=True)

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        if self._size == 1:
            return super()._create_variable(next_creator, **kwargs)
        check_exchangeable(kwargs.get("dtype"), kwargs.get("name"))
        kwargs, is_equal = self.before_creating(kwargs)
        variable = super()._create_variable(next_creator, **kwargs)
        if not is_equal and variable.dtype != tf.string:
            with tf.init_scope():
                local = variable.values[0]
                local.assign(self.broadcast(local.read_value()))
        return variable

    def _local(self, value: Any) -> Any:
        return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value

    def _reduced(self, reduce_op: Any, values: list) -> list:
        """The values summed or averaged; sparse gradients stay sparse."""
        dense = {i: v for i, v in enumerate(values) if not isinstance(v, tf.IndexedSlices)}
        sums = dict(zip(dense, self.all_reduce([tf.convert_to_tensor(v) for v in dense.values()])))
        for index, value in enumerate(values):
            if index not in dense:
                sums[index] = tf.IndexedSlices(
                    self.all_gather(value.values), self.all_gather(value.indices), value.dense_shape
                )
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            sums = {i: v / tf.cast(self._size, v.dtype) for i, v in sums.items()}
        return [sums[index] for index in range(len(values))]

    def _batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any) -> list:
        reduced = self._reduced(reduce_op, [self._local(value) for value, _ in pairs])
        return [
            distribute_utils.regroup((value,), wrap_class=tf_values.Mirrored, always_wrap=True)
            for value in reduced
        ]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if isinstance(value, tf_values.Mirrored) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value
        return self._reduced(reduce_op, [self._local(value)])[0]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        value = tf.convert_to_tensor(self._local(value))
        order = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, tf.rank(value))], axis=0)
        gathered = self.all_gather(tf.transpose(value, order))
        return tf.transpose(gathered, tf.math.invert_permutation(order))


def separate_collectives(strategy: tf.distribute.Strategy) -> None:
    """Keeps the collective operations of several strategies of one process apart.

    All strategies number their groups from the same base, so that those of the second one meet
    those of the first. To be called before the strategy's constructor, in the same order in every
    process. TensorFlow 2.20-2.21; separate numbers by default would replace it.
    """
    strategy._collective_key_base = 1000 * next(_key_bases)


_key_bases = itertools.count(1)


@functools.cache
def install_collectives() -> None:
    """Mends TensorFlow's collective operations for Keras' loops, once per process.

    Three things. (1) With `steps_per_execution` > 1 Keras calls a function inside a loop; there
    TensorFlow cannot number an operation at the time of the call, and crashes; it is numbered when
    traced, which is the same in all processes, because Keras traces at its first step.
    (2) The iterator of a data set whose length all processes know need not ask in each step
    whether any of them has data left. (3) A function that was traced with such an iterator must not
    be reused with one that asks, of which TensorFlow thinks as one type. TensorFlow 2.20-2.21;
    TensorFlow's fixes would replace them.
    """
    _tell_iterators_that_ask_apart()
    launcher = cross_device_utils.CollectiveReplicaLauncher
    use_unique_instance_key = launcher._use_unique_instance_key
    iterator = input_lib.DistributedIteratorBase
    get_next_as_optional = iterator.get_next_as_optional
    replicas_with_values = input_lib._calculate_replicas_with_values

    @functools.wraps(use_unique_instance_key)
    def _use_unique_instance_key(self: Any) -> bool:
        return use_unique_instance_key(self) and not _in_function_in_loop()

    @functools.wraps(get_next_as_optional)
    def get_next_as_optional_of_known_length(self: Any) -> Any:
        ours = isinstance(self._strategy.extended, (MultiWorkerExtended, OneReplicaExtended))
        if not ours or self._enable_get_next_as_optional:
            return get_next_as_optional(self)
        _local_end_of_data.active = True
        try:
            return get_next_as_optional(self)
        finally:
            _local_end_of_data.active = False

    @functools.wraps(replicas_with_values)
    def _calculate_replicas_with_values(strategy: Any, workers: Any, optionals: list) -> Any:
        if not getattr(_local_end_of_data, "active", False):
            return replicas_with_values(strategy, workers, optionals)
        flat = [optional for of_worker in optionals for optional in of_worker]
        return tf.add_n([tf.cast(optional.has_value(), tf.int64) for optional in flat])

    input_lib._calculate_replicas_with_values = _calculate_replicas_with_values
    launcher._use_unique_instance_key = _use_unique_instance_key
    iterator.get_next_as_optional = get_next_as_optional_of_known_length


def _tell_iterators_that_ask_apart() -> None:
    spec = input_lib.DistributedIteratorSpec
    serialize, sanity_check_type = spec._serialize, spec.sanity_check_type

    @functools.wraps(serialize)
    def _serialize(self: Any) -> tuple:
        return (*serialize(self), self._enable_get_next_as_optional)

    @functools.wraps(sanity_check_type)
    def check_type(self: Any, other: Any) -> None:
        sanity_check_type(self, other)
        if self._enable_get_next_as_optional != other._enable_get_next_as_optional:
            raise ValueError(f"one iterator asks for the end of data: {self}, {other}")

    spec._serialize = _serialize
    spec.sanity_check_type = check_type


def _let_distributed_variables_be_numbers() -> None:
    """Lets Python and NumPy read a distributed variable as they read one of one device.

    Why: callbacks write `float(model.optimizer.learning_rate)`. TensorFlow's distributed variables
    have `numpy` but not these methods. TensorFlow 2.20-2.21, which would have to define them.
    """

    def as_array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy
        return np.asarray(self.numpy(), dtype)

    variable = tf_values.DistributedVariable
    variable.__array__ = as_array
    variable.__int__ = lambda self: int(self.numpy())
    variable.__float__ = lambda self: float(self.numpy())
    variable.__complex__ = lambda self: complex(self.numpy())


def traced_function() -> tf.Graph | None:
    """The graph of the outermost function that is being traced, None outside of any.

    Why: operations are numbered by it. TensorFlow 2.20-2.21; a public attribute would replace it.
    """
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def run_after(operation: tf.Operation, first: tf.Operation) -> None:
    """Makes an operation of a graph that is being traced wait for another one, which may be newer.

    Why: `tf.control_dependencies` is only for operations that do not exist yet, and those of a
    backward pass do when a strategy sees the gradients. TensorFlow 2.20-2.21; a public method of
    `tf.Operation` would replace it.
    """
    operation._add_control_input(first)


def _in_function_in_loop() -> bool:
    """Whether a function is being traced that is called inside a loop or a condition."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    while graph is not None:
        if getattr(graph, "is_control_flow_graph", False):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@functools.cache
def install() -> None:
    """Puts all wrappers in place, once per process."""
    _note_lengths(keras_array_adapter.ArrayDataAdapter)
    _note_lengths(keras_py_dataset_adapter.PyDatasetAdapter)
    _wrap_optimizer()
    _wrap_learning_rate()
    _wrap_gradient_tape()
    _wrap_take()
    _wrap_functions_of_empty_batches()
    _wrap_functions_that_need_a_sample()
    _wrap_variable_key()
    _wrap_losses()
    _wrap_losses_of_loops()
    _wrap_mean_metric()
    _wrap_seed_generator()
    _wrap_global_seed_generator()
    _let_distributed_variables_be_numbers()
