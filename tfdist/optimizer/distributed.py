"""DistributedOptimizer: the step path from a replica's gradients to the updated variables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import check_instance
from tfdist.optimizer.wrapper import OptimizerWrapper
from tfdist.options import Compression, Options
from tfdist.step import backward, collection, exchange, loss_scale, loss_sums, replica, update
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.compression import CompressedExchange
from tfdist.step.compression_state import CompressionState
from tfdist.step.loss_tags import LOSS, refuse_unweighted, tag
from tfdist.step.totals import Totals
from tfdist.step.weighting import weigh
from tfdist.validation import check_inner_optimizer, check_trainable


@keras.saving.register_keras_serializable("tfdist")
class DistributedOptimizer(OptimizerWrapper):
    """Wraps a Keras optimizer so that it applies the gradient of the global batch.

    Each replica hands in the gradients of its own part of the batch. They are weighted by the
    replica's share of the global batch, accumulated over `accumulation_steps` micro-batches,
    summed over the replicas in buckets, clipped, and applied by the inner optimizer's own code.

    Under `model.fit` a tfdist strategy wraps the model's optimizer by itself. In a custom training
    loop wrap it by hand, and call `apply` inside `strategy.run`. There the tape that takes the
    gradient of a mean loss applies the replica's share.

    The learning rate and every other setting of the inner optimizer can be read and set here. The
    saved state has the inner optimizer's layout, so a model trained with tfdist loads without it.

    Args:
        inner_optimizer: the `keras.optimizers.Optimizer` to wrap, or its name; a
            `LossScaleOptimizer` too. Make it in the strategy's scope.
        accumulation_steps: number of micro-batches whose gradients are averaged before an exchange
            and an update. None for the strategy's option (1 without a tfdist strategy).
            `iterations`, and with it every schedule, counts updates.
        bucket_bytes: upper bound of a bucket in bytes. None for the strategy's option (4 MiB).
        compression: how gradients are compressed: a `tfdist.compression.Compressor`, its name, or a
            dict of patterns of variables' paths and these. None for the strategy's option.
        name: the optimizer's name. None for a name made from the inner optimizer's.

    Raises:
        ValueError: for a `DistributedOptimizer` inside another, an optimizer that accumulates
            itself (`gradient_accumulation_steps`), and options out of range.
        TypeError: when `inner_optimizer` is no Keras 3 optimizer.

    Example:

    >>> import keras, numpy as np, tensorflow as tf, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
    ...     optimizer.build(model.trainable_variables)
    ...     loss = keras.losses.MeanSquaredError()
    >>> @tf.function
    ... def train_step(x, y):
    ...     def step(x, y):
    ...         with tf.GradientTape() as tape:
    ...             value = loss(y, model(x, training=True))
    ...         variables = model.trainable_variables
    ...         optimizer.apply(tape.gradient(value, variables), variables)
    ...     strategy.run(step, args=(x, y))
    >>> batch = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    >>> data = tf.data.Dataset.from_tensors(batch).unbatch().batch(8)
    >>> for x, y in strategy.experimental_distribute_dataset(data):
    ...     train_step(x, y)
    >>> int(optimizer.iterations.numpy())
    1
    """

    def __new__(cls, inner_optimizer: Any = None, *args: Any, **kwargs: Any) -> Any:
        """An instance that is a `LossScaleOptimizer` too if `inner_optimizer` is one."""
        scales = isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer)
        if scales and cls is DistributedOptimizer:
            cls = DistributedLossScaleOptimizer
        return super().__new__(cls)

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str | dict,
        accumulation_steps: int | None = None,
        bucket_bytes: int | None = None,
        compression: Compression = None,
        name: str | None = None,
    ):
        inner = check_inner_optimizer(inner_optimizer, DistributedOptimizer)
        if name is not None:
            check_instance("name", name, str, "str")
        options = Options.of(tf.distribute.get_strategy()).replace(
            accumulation_steps=accumulation_steps,
            bucket_bytes=bucket_bytes,
            compression=compression,
        )
        for compressor in options.compression.compressors if options.compression else ():
            compressor.check_optimizer(getattr(inner, "inner_optimizer", inner))
        super().__init__(inner, name=name or f"distributed_{inner.name}")
        self.options = options
        self.gradient_monitor = None
        self.accumulator: GradientAccumulator | None = None
        self.compression_state: CompressionState | None = None
        self._totals: Totals | None = None

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the inner optimizer's state and the accumulators for `variables`."""
        if self.built:
            return
        check_trainable(variables)
        super().build(variables)
        if isinstance(tf.distribute.get_strategy(), collection.CollectsGradients):
            return
        if self.options.accumulation_steps > 1:
            self.accumulator = GradientAccumulator(
                self.options.accumulation_steps,
                exchange.plan_buckets(self._specs(), self.options.bucket_bytes),
                len(variables),
                lambda: int(self._updater().iterations.numpy()),
                self.options.compression is not None,
            )
        paths = [variable.path for variable in variables]
        self._totals = Totals(self.options, self._specs(), paths)
        if self.compressed is not None:
            self.compression_state = self.compressed.state

    @property
    def compressed(self) -> CompressedExchange | None:
        """What compresses the gradients, once the optimizer is built; None without compression."""
        return self._totals.compressed if self._totals is not None else None

    @tf.autograph.experimental.do_not_convert
    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Scales a loss before its gradient is taken: by the replica's share and the loss scale.

        Args:
            loss: the loss of the replica's part of the batch, a scalar, or a tensor of one value
                for each sample, of which a tape's gradient is the sum over all samples.
        """
        step = replica.current()
        if step is not None and not step.own_loop:
            step.scaled_losses.add(id(self))
            loss = loss_sums.as_mean(step, loss)
            loss = loss * tf.cast(step.share.fraction, loss.dtype)
        return tag(self.unwrap().scale_loss(loss), LOSS)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: list, trainable_variables: list[keras.Variable] | None = None) -> None:
        """Exchanges the replicas' gradients and updates the variables; in replica context.

        Args:
            grads: this replica's gradients: tensors of the variables' shapes, `tf.IndexedSlices`,
                or None.
            trainable_variables: the variables, in the order of `grads`. None for those that the
                optimizer was built for.

        Raises:
            ValueError: in cross-replica context, without any gradient, for a variable that the
                optimizer was not built for, and in a parameter server's loop of the user's own.
        """
        context = tf.distribute.get_replica_context()
        if context is None:
            raise ValueError(
                "DistributedOptimizer.apply takes one replica's gradients: call it in the function "
                "that is passed to strategy.run. Received: a call in cross-replica context."
            )
        variables = list(trainable_variables or self.built_for)
        refuse_unweighted(grads)
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
        if not self.built:
            context.merge_call(self._build_in_scope, args=(variables,))
        if self.accumulator is not None:
            self._check_applied_once()
        if context.num_replicas_in_sync > 1:
            backward.compute_first(grads, self.options.bucket_bytes)
        gradients = self._in_build_order(list(grads), variables)
        if self.gradient_monitor is not None:
            self.gradient_monitor.record(gradients)
        totals = self._totals
        assert totals is not None
        packing, packed = self._pack(totals, gradients)

        largest = getattr(context.strategy, "largest_message", None)

        def exchange_and_update(packed: list, after: Sequence[Any] = ()) -> None:
            number = tf.convert_to_tensor(self._updater().iterations.value)
            reduced = totals.sum(packing, packed, number, largest)
            order = [self._index_of(v) for v in variables]
            reduced = [None if gradients[i] is None else reduced[i] for i in order]
            update.apply_reduced(self._updater(), reduced, variables, after)

        finite = loss_scale.all_finite(packed) if self._loss_scaler() else None
        if self.accumulator is not None:
            self.accumulator.add(packed, finite)
        if self.accumulator is None and finite is None:
            exchange_and_update(packed, after=packed if context.num_replicas_in_sync > 1 else ())
            self._note_counted()
        else:
            context.merge_call(self._update_if_due, args=(exchange_and_update, packed, finite))

    def _hand_out(self, collected: collection.Collected, grads: list, variables: list) -> None:
        """Gives the gradients, weighted, to whoever runs the step."""
        if collected.builds_later and not self.built:
            collected.unbuilt.append((self, variables))
            return
        with compat.outside_stateless_scope():
            if not self.built:
                self._build_in_scope(self._distribution_strategy, variables)
            gradients = self._in_build_order(grads, variables)
        weight = self._weight()
        if weight is not None:
            gradients = [None if g is None else weigh(g, weight) for g in gradients]
        collected.applied.append((self, gradients))

    def apply_collected(self, gradients: list, variables: list[keras.Variable]) -> tf.Tensor | None:
        """Applies gradients that `collection.collect` got; in replica context.

        Args:
            gradients: one per variable; None for none.
            variables: those that the optimizer was built for, or in the place of one its parts.

        Returns:
            A bool scalar, whether they were finite, as others are not applied where the loss is
            scaled; None where it is not.
        """
        scaler, updater = self._loss_scaler(), self._updater()
        if scaler is None:
            update.apply_reduced(updater, gradients, variables)
            return None
        finite = loss_scale.all_finite([g for g in gradients if g is not None])

        def in_cross_replica_context(strategy: tf.distribute.Strategy) -> None:
            def finite_step() -> None:
                run = strategy.extended.call_for_each_replica
                run(update.apply_reduced, args=(updater, gradients, variables))
                loss_scale.after_finite_step(scaler)

            tf.cond(finite, finite_step, lambda: loss_scale.after_overflow(scaler))

        tf.distribute.get_replica_context().merge_call(in_cross_replica_context)
        return finite

    def _note_counted(self) -> None:
        """Notes that the step counts an update, whatever the data."""
        step = replica.current()
        if step is None:
            return
        inner = self.unwrap()
        for optimizer in (inner, *getattr(inner, "optimizers", ())):  # of a MultiOptimizer
            if optimizer.built:
                step.advances.append(functools.partial(optimizer.iterations.assign_add, 1))

    def _check_applied_once(self) -> None:
        """Raises ValueError at a second call in one step: each counts as a micro-batch."""
        step = replica.current()
        if step is None:
            return
        if id(self) in step.applied:
            raise ValueError(
                "With gradient accumulation an optimizer can be applied once per step, as each "
                "time counts as a micro-batch. Apply all gradients at once, use an optimizer for "
                "each group of variables, or `accumulation_steps=1`. Received: a second apply of "
                f"{self.name} with accumulation_steps={self.options.accumulation_steps}"
            )
        step.applied.add(id(self))

    def _build_in_scope(self, strategy: tf.distribute.Strategy, variables: list) -> None:
        with tf.init_scope(), strategy.scope():
            self.build(variables)

    def _pack(self, totals: Totals, gradients: list) -> tuple[exchange.Packing, list]:
        """Packs and weights the gradients in one pass.

        Accumulated gradients are dense, with zeros for variables that have none in this step.
        """
        if self.accumulator is not None:
            gradients = [
                tf.zeros(variable.shape, variable.dtype)
                if gradient is None
                else tf.convert_to_tensor(gradient)
                for gradient, variable in zip(gradients, self.built_for)
            ]
        packing = totals.packing(gradients, self.accumulator is not None)
        packed = packing.pack(gradients)
        weight = self._weight()
        return packing, packed if weight is None else [weigh(value, weight) for value in packed]

    def _weight(self) -> float | tf.Tensor | None:
        """What the gradients are multiplied by; None for nothing.

        The share, unless the loss has it already; zero on a replica without samples; and the
        inverse of the loss scale.
        """
        weight: float | tf.Tensor | None = None
        step = replica.current()
        if step is not None:
            scaled = step.own_loop or id(self) in step.scaled_losses
            step.weighted_gradients |= not scaled
            weight = step.share.nonempty if scaled else step.share.fraction
            weight = None if step.empty_counts else weight
        scaler = self._loss_scaler()
        if scaler:
            unscale = loss_scale.unscale_factor(scaler)
            weight = unscale if weight is None else unscale * weight
        return weight

    def _update_if_due(
        self, strategy: tf.distribute.Strategy, update_replica: Any, packed: Any, finite: Any
    ) -> None:
        """Counts the micro-batch and updates at the k-th, unless a gradient is not finite.

        It runs in cross-replica context, the only place where TensorFlow allows a condition around
        a collective operation.
        """
        run = strategy.extended.call_for_each_replica
        scaler, accumulator = self._loss_scaler(), self.accumulator

        def finite_step() -> None:
            if accumulator is None:
                run(lambda update, values: update(values), args=(update_replica, packed))
            else:
                # At the end of data of unknown length a step runs into the end of the data set;
                # without gradients nothing may be counted.
                parts = [strategy.experimental_local_results(value) for value in packed]
                with tf.control_dependencies([part for local in parts for part in local]):
                    due, number = accumulator.count()
                take = functools.partial(accumulator.take, number)
                tf.cond(
                    due,
                    lambda: run(lambda update: update(take()), args=(update_replica,)),
                    lambda: None,
                )
            if scaler:
                loss_scale.after_finite_step(scaler)

        if finite is None:
            finite_step()
        else:
            tf.cond(
                strategy.experimental_local_results(finite)[0],
                finite_step,
                lambda: loss_scale.after_overflow(scaler),
            )

    def _loss_scaler(self) -> keras.optimizers.LossScaleOptimizer | None:
        inner = self.unwrap()
        return inner if isinstance(inner, keras.optimizers.LossScaleOptimizer) else None

    def _updater(self) -> keras.optimizers.Optimizer:
        """The optimizer that updates the variables, below any loss scaling."""
        scaler = self._loss_scaler()
        return scaler.inner_optimizer if scaler else self.unwrap()

    def _specs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec(v.shape, v.dtype) for v in self.built_for]

    def get_config(self) -> dict[str, Any]:
        """The configuration, from which `from_config` makes an equal optimizer without state."""
        compression = self.options.compression
        return {
            "inner_optimizer": keras.saving.serialize_keras_object(self.unwrap()),
            "accumulation_steps": self.options.accumulation_steps,
            "bucket_bytes": self.options.bucket_bytes,
            "compression": compression and compression.get_config(),
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict | None = None
    ) -> DistributedOptimizer:
        """Makes the optimizer that `get_config` describes."""
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**{**config, "inner_optimizer": inner})


@keras.saving.register_keras_serializable("tfdist")
class DistributedLossScaleOptimizer(DistributedOptimizer, keras.optimizers.LossScaleOptimizer):
    """What `DistributedOptimizer` makes of a `keras.optimizers.LossScaleOptimizer`.

    Keras and scripts find out with `isinstance` whether the loss is scaled already.
    """
