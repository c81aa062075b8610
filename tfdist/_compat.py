"""Every private attribute of TensorFlow and Keras that tfdist touches, and nothing else.

Keras 3 has no hook for what a strategy must know or change inside a training step, so some of its
functions are wrapped, once, when tfdist is imported. Each wrapper calls the original unchanged
unless a tfdist strategy is running the step. `tests/test_compat.py` fails by name when an
attribute disappears. Verified with Keras 3.10-3.15 and TensorFlow 2.20-2.21.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_tf_optimizer
from keras.src.backend.tensorflow import trainer as keras_tf_trainer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer as keras_base_optimizer
from keras.src.random import seed_generator as keras_seed_generator
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.trainers import trainer as keras_trainer

from tfdist import replica
from tfdist.stages import weighting

__all__ = [
    "KerasSaveable",
    "applying_reduced_gradients",
    "flatten_layers",
    "hook_compile",
    "hook_symbolic_build",
    "hook_unwrapped_optimizer",
    "install",
    "keras_step",
    "model_strategy",
    "own_non_trainable_variables",
    "variables_to_build",
]

# KerasSaveable: the base class by which Keras' saving finds objects with state of their own; the
# accumulated gradients are such an object. Keras 3.0-3.15. A public base class would replace it.


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


def hook_symbolic_build(batch_spec: Callable[[Any, Any], Any]) -> None:
    """Makes Keras build models from `batch_spec(strategy, data set)` instead of from a batch.

    `batch_spec` returns the structure of one batch as type specs, or None for Keras' own way. Why:
    Keras takes a batch from the data (which a generator never gives again) and averages it over
    the replicas, which fails for strings, sparse tensors and uneven parts. Keras 3.10-3.15. A
    trainer that builds from `element_spec` would replace it.
    """
    trainer = keras_tf_trainer.TensorFlowTrainer
    original = trainer._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and self._distribute_strategy is not None:
            spec = batch_spec(self._distribute_strategy, iterator._distributed_dataset)
            if any(isinstance(leaf, tf.RaggedTensorSpec) for leaf in tf.nest.flatten(spec)):
                return
            if spec is not None:
                with self._distribute_strategy.scope():
                    self._symbolic_build(data_batch=spec)
                return
        original(self, iterator=iterator, data_batch=data_batch)

    trainer._maybe_symbolic_build = _maybe_symbolic_build


def keras_step(fn: Callable) -> tuple[keras.Model, str] | None:
    """The model and step name, if `fn` is what Keras' trainer passes to `Strategy.run`.

    Keras wraps the model's bound `train_step` or `test_step` with `functools.wraps`; for `predict`
    it is a closure over the model. Why: only Keras' own steps take the optimizer from the model.
    Keras 3.10-3.15. A public argument of `Strategy.run` would replace it.

    Returns:
        `(model, name)` with name "train_step", "test_step" or "predict_step"; None for any other.
    """
    fn = _unwrapped(fn)
    model = getattr(fn, "__self__", None)
    if isinstance(model, keras.Model):
        return (model, fn.__name__) if fn.__name__ in ("train_step", "test_step") else None
    if getattr(fn, "__name__", "") == "one_step_on_data":
        model = inspect.getclosurevars(fn).nonlocals.get("self")
        if isinstance(model, keras.Model):
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
    """Calls `hook(optimizer)` when an optimizer reduces gradients itself in a tfdist step."""
    _unwrapped_optimizer_hooks.append(hook)


def variables_to_build(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables that a built `optimizer` was built for. Keras 3.0-3.15; none public."""
    return list(optimizer._trainable_variables)


def _wrap_optimizer() -> None:
    optimizer_class = keras_tf_optimizer.TFOptimizer
    reduce_gradients = optimizer_class._all_reduce_sum_gradients
    overwrite = optimizer_class._overwrite_model_variables_with_average_value
    overwrite_locally = (
        keras_base_optimizer.BaseOptimizer._overwrite_model_variables_with_average_value
    )

    @functools.wraps(reduce_gradients)
    def _all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        if getattr(_applying, "active", False):
            return list(grads_and_vars)
        if replica.current() is not None:
            for hook in _unwrapped_optimizer_hooks:
                hook(self)
        return reduce_gradients(self, grads_and_vars)

    # Keras' TensorFlow version updates all replicas at once, which TensorFlow forbids inside the
    # condition that Keras puts around it; the base class updates the running replica's copy.
    @functools.wraps(overwrite)
    def _overwrite_model_variables_with_average_value(self: Any, variables: Any) -> None:
        if getattr(_applying, "active", False):
            overwrite_locally(self, variables)
        else:
            overwrite(self, variables)

    optimizer_class._all_reduce_sum_gradients = _all_reduce_sum_gradients
    optimizer_class._overwrite_model_variables_with_average_value = (
        _overwrite_model_variables_with_average_value
    )


# --- Keras' losses --------------------------------------------------------------------------------


def _wrap_losses() -> None:
    """Gives losses the replica's true share and their true normalizer instead of 1/replicas.

    Keras 3.10-3.15. A public hook for the distributed loss scale would replace it.
    """
    scale = keras_loss.scale_loss_for_distribution
    unscale = keras_loss.unscale_loss_for_distribution
    reduce_weighted_values = keras_loss.reduce_weighted_values

    @functools.wraps(scale)
    def scale_loss_for_distribution(value: Any) -> Any:
        step = replica.current()
        if step is None:
            return scale(value)
        return value * tf.cast(step.share.fraction, value.dtype) if step.share_in_loss else value

    @functools.wraps(unscale)
    def unscale_loss_for_distribution(value: Any) -> Any:
        step = replica.current()
        if step is None:
            return unscale(value)
        if step.share.nonempty is not None:
            value = tf.math.multiply_no_nan(value, tf.cast(step.share.nonempty, value.dtype))
        if step.share_in_loss:
            value = tf.math.divide_no_nan(value, tf.cast(step.share.fraction, value.dtype))
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
        if step is None or reduction in (None, "none") or len(values.shape) == 0:
            return loss
        loss = tf.reduce_sum(loss)  # a scalar, but Keras leaves the losses of no sample a vector
        weights = mask if reduction in ("mean", "sum_over_batch_size") else None
        if reduction == "mean_with_sample_weight":
            weights = keras_loss.apply_mask(sample_weight, mask, tf.float32, reduction)
        normalizer = None if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
        return weighting.with_global_normalizer(
            step.share, step.share_in_loss, loss, reduction, normalizer
        )

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
        if step is not None and step.share.nonempty is not None and sample_weight is None:
            values = tf.convert_to_tensor(values)
            if values.shape.rank == 0 and values.dtype.is_floating:
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
        replica_id = tf.cast(step.replica_id, seed.dtype)
        offset = replica_id * tf.constant(_GOLDEN_RATIO, seed.dtype)
        return seed + tf.stack([offset, tf.zeros_like(offset)])

    keras_seed_generator.SeedGenerator.next = next_for_replica


@functools.cache
def install() -> None:
    """Puts all wrappers in place, once per process."""
    _wrap_optimizer()
    _wrap_losses()
    _wrap_mean_metric()
    _wrap_seed_generator()
