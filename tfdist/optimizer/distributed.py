"""DistributedOptimizer: the step path from a replica's gradients to the updated variables."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from tfdist import compat
from tfdist.arguments import check_instance
from tfdist.optimizer.scope import check_optimizer_scope
from tfdist.optimizer.wrapper import OptimizerWrapper
from tfdist.options import OptimizerOptions, Options, takes_optimizer_options
from tfdist.step import collection, end_of_data, loss_sums, replica
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.compression import CompressedExchange
from tfdist.step.gradient_weight import gradient_weight, note_scaled, share_of_loss, weighted
from tfdist.step.local_rounds import LocalRounds
from tfdist.step.loss_scale import LossScale
from tfdist.step.loss_tags import LOSS, refuse_unweighted, tag
from tfdist.step.path import StepPath
from tfdist.step.update import Update, update_of
from tfdist.step.weighting import weigh
from tfdist.validation import check_inner_optimizer, check_trainable


@keras.saving.register_keras_serializable("tfdist")
class DistributedOptimizer(OptimizerWrapper):
    """Wraps a Keras optimizer so that it applies the gradient of the global batch.

    Each replica hands in the gradients of its own part of the batch. They are weighted by the
    replica's share of the global batch, accumulated over `accumulation_steps` micro-batches,
    summed over the replicas in buckets, clipped, and applied by the inner optimizer's own code.

    Under `model.fit` a tfdist strategy wraps the model's optimizer automatically. In a custom loop
    wrap the optimizer by hand, and call `apply` inside `strategy.run`. There, the tape that takes
    the gradient of a mean loss applies the replica's share.

    The learning rate and all other settings of the inner optimizer can be read and set here. The
    saved state has the inner optimizer's layout, so a trained model can be loaded without tfdist.

    Args:
        inner_optimizer: the `keras.optimizers.Optimizer` to wrap, or its name. It may be a
            `LossScaleOptimizer`. Make it in the strategy's scope.
        name: the optimizer's name. None for a name made from the inner optimizer's name.
        **options: `accumulation_steps`, `bucket_bytes` and `compression`, by keyword; see
            `tfdist.Options`. None for the strategy's option, or without a tfdist strategy for the
            default. With accumulation, `iterations` and every schedule count updates.

    Raises:
        ValueError: for a `DistributedOptimizer` inside another, an optimizer that itself
            accumulates (`gradient_accumulation_steps`), and options out of range.
        TypeError: when `inner_optimizer` is no Keras 3 optimizer.

    Example:

    >>> import keras, tensorflow as tf, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
    ...     optimizer.build(model.trainable_variables)
    >>> @tf.function
    ... def train_step(x, y):
    ...     def step(x, y):
    ...         with tf.GradientTape() as tape:
    ...             value = keras.losses.MeanSquaredError()(y, model(x, training=True))
    ...         variables = model.trainable_variables
    ...         optimizer.apply(tape.gradient(value, variables), variables)
    ...     strategy.run(step, args=(x, y))
    >>> data = tf.data.Dataset.from_tensor_slices((tf.ones((8, 2)), tf.ones((8, 1)))).batch(8)
    >>> for x, y in strategy.experimental_distribute_dataset(data):
    ...     train_step(x, y)
    >>> int(optimizer.iterations.numpy())
    1
    """

    _own = frozenset({"options", "given", "_loss_scale", "_update"})
    gradient_monitor: Any = None
    accumulator: GradientAccumulator | None = None
    compression_state: Any = None
    local_state: Any = None
    parts_of_state: Any = None
    _path: StepPath | None = None

    def __new__(cls, inner_optimizer: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Returns an instance that is also a `LossScaleOptimizer` if `inner_optimizer` is one."""
        scales = isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer)
        if scales and cls is DistributedOptimizer:
            cls = DistributedLossScaleOptimizer
        return super().__new__(cls)

    @takes_optimizer_options
    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str | dict,
        *,
        name: str | None = None,
        **options: Unpack[OptimizerOptions],
    ):
        inner = check_inner_optimizer(inner_optimizer, DistributedOptimizer)
        if name is not None:
            check_instance("name", name, str, "str")
        chosen = Options.of(tf.distribute.get_strategy()).replace(**options)
        for compressor in chosen.compression.compressors if chosen.compression else ():
            compressor.check_optimizer(getattr(inner, "inner_optimizer", inner))
        super().__init__(inner, name=name or f"distributed_{inner.name}")
        self.options, self.given = chosen, frozenset(n for n, v in options.items() if v is not None)
        self._loss_scale, self._update = LossScale(inner), update_of(chosen, inner)

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the inner optimizer's state and the accumulators for `variables`."""
        if not self.built:
            check_trainable(variables)
            super().build(variables)

    def _build_inner(self, variables: list[keras.Variable]) -> None:
        self._update.build(variables)
        if isinstance(tf.distribute.get_strategy(), collection.CollectsGradients):
            return
        self._path = StepPath(
            self.options, self.unwrap(), self._update, self._loss_scale, variables
        )
        for name, state in self._path.states().items():
            if state is not None:  # as attributes, so that Keras' saving finds them
                setattr(self, name, state)

    def _keeper(self) -> Update:
        return self._update

    def load_own_variables(self, store: dict) -> None:
        """Reads the inner optimizer's state."""
        super().load_own_variables(store)
        if self.local_state is not None:
            self.local_state.note_file(bool(store.keys()))

    @property
    def compressed(self) -> CompressedExchange | None:
        """Compresses the gradients, once the optimizer is built; None without compression."""
        return self._path.averaging.compressed if self._path is not None else None

    @property
    def rounds(self) -> LocalRounds | None:
        """Where replicas that train apart meet; None before `build`, and without `local`."""
        return self._path.rounds if self._path is not None else None

    @tf.autograph.experimental.do_not_convert
    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Scales a loss before its gradient is taken: by the replica's share and the loss scale.

        Args:
            loss: the loss of the replica's part of the batch: a scalar, or a tensor with one value
                per sample, whose gradient a tape sums over all samples.
        """
        step = replica.current()
        if step is not None and not step.own_loop:
            loss = loss_sums.as_mean(step, loss, warns=True)
            loss = share_of_loss(step, self, loss)
        return tag(self.unwrap().scale_loss(loss), LOSS)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: list, trainable_variables: list[keras.Variable] | None = None) -> None:
        """Exchanges the replicas' gradients and updates the variables; in replica context.

        Args:
            grads: this replica's gradients: tensors of the variables' shapes, `tf.IndexedSlices`,
                or None.
            trainable_variables: the variables, in the order of `grads`. None for the variables that
                the optimizer was built for.

        Raises:
            ValueError: in cross-replica context; without any gradient; without variables before the
                optimizer is built; for a variable that the optimizer was not built for; for an
                optimizer of another scope; in a user's own loop under a parameter server.
        """
        context = tf.distribute.get_replica_context()
        if context is None:
            raise ValueError(
                "DistributedOptimizer.apply takes one replica's gradients: call it in the function "
                "that is passed to strategy.run. Received: a call in cross-replica context."
            )
        variables = self._given_or_built_for(trainable_variables)
        refuse_unweighted(grads)
        note_scaled(self, grads)
        collected = collection.current()
        if collected is not None:
            self._hand_out(collected, list(grads), variables)
            return
        if isinstance(context.strategy, collection.CollectsGradients):
            raise ValueError(
                "Under a parameter server DistributedOptimizer works in `fit`. In functions that a "
                "ClusterCoordinator schedules, use the Keras optimizer itself. "
                f"Received: an apply of {self.name} outside of fit"
            )
        if tf.distribute.has_strategy():
            check_optimizer_scope(self, context.strategy)
        if not self.built:
            context.merge_call(self._build_in_scope, args=(variables,))
        path = self._path
        assert path is not None
        path.check_applied_once(self)
        path.order(grads, variables)
        gradients = self._in_build_order(list(grads), variables)
        if self.gradient_monitor is not None:
            self.gradient_monitor.record(gradients)
        places = [self._index_of(variable) for variable in variables]
        path.run(*weighted(self, self._loss_scale, gradients, self.built_for), variables, places)
        if path.updates_at_each_step:
            self._note_counted()

    def _hand_out(self, collected: collection.Collected, grads: list, variables: list) -> None:
        """Hands the weighted gradients to the caller that runs the step."""
        if collected.takes(self, grads, variables):
            return
        if collected.builds_later and not self.built:
            collected.unbuilt.append((self, variables))
            return
        with compat.outside_stateless_scope():
            if not self.built:
                self._build_in_scope(self._distribution_strategy, variables)
            gradients = self._in_build_order(grads, variables)
        weight = gradient_weight(self, self._loss_scale)
        if weight is not None:
            gradients = [None if g is None else weigh(g, weight) for g in gradients]
        collected.applied.append((self, gradients))

    def apply_collected(self, gradients: list, variables: list[keras.Variable]) -> tf.Tensor | None:
        """Applies gradients from `collection.collect`; in replica context.

        Args:
            gradients: one per variable; None where a variable has none.
            variables: the variables given to `build`; for one of them there may be its parts.

        Returns:
            With loss scaling a bool scalar: whether the gradients were finite and so were applied.
            None without loss scaling.
        """
        if not self._loss_scale.is_used:
            self._update.apply(gradients, variables)
            return None
        finite = self._loss_scale.all_finite([g for g in gradients if g is not None])

        def in_cross_replica_context(strategy: tf.distribute.Strategy) -> None:
            run = strategy.extended.call_for_each_replica
            self._loss_scale.decide(
                finite, lambda: run(self._update.apply, args=(gradients, variables))
            )

        tf.distribute.get_replica_context().merge_call(in_cross_replica_context)
        return finite

    def _note_counted(self) -> None:
        """Notes that this step counts an update, whatever the data."""
        step = replica.current()
        if step is not None:
            step.notes.advances += [partial(end_of_data.count, c) for c in self.counters()]

    def finish_round(self) -> None:
        """With `local`: ends the rounds under way in this strategy, so that there is one model.

        `fit`, `evaluate`, `predict` and saving do so by themselves. A loop of your own calls it
        before it looks at the weights, outside of functions and in all processes.
        """
        if self.rounds is not None:
            self._distribution_strategy.finish_rounds()

    def _build_in_scope(self, strategy: tf.distribute.Strategy, variables: list) -> None:
        with tf.init_scope(), strategy.scope():
            self.build(variables)

    def get_config(self) -> dict[str, Any]:
        """The configuration; `from_config` makes an equal optimizer from it, without state."""
        options, names = self.options.get_config(), self.options.of_optimizer()
        return {
            "inner_optimizer": keras.saving.serialize_keras_object(self.unwrap()),
            # Those of the strategy are not of the optimizer: the one that loads it has its own.
            **{name: options[name] if name in self.given else None for name in names},
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict | None = None
    ) -> DistributedOptimizer:
        """Makes the optimizer that `get_config` describes."""
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects)
        return cls(**{**config, "inner_optimizer": inner})


@keras.saving.register_keras_serializable("tfdist")
class DistributedLossScaleOptimizer(DistributedOptimizer, keras.optimizers.LossScaleOptimizer):
    """A `DistributedOptimizer` around a `keras.optimizers.LossScaleOptimizer`.

    Keras and scripts use `isinstance` to find out whether the loss is scaled already.
    """
