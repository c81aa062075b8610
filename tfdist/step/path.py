"""The one way from a replica's gradients to updated variables, stage by stage."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.current import current
from tfdist.options import Options
from tfdist.step import backward, exchange, parts, replica, row_tables, spans
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.averaging import averaging_of
from tfdist.step.exchange import Packing
from tfdist.step.local_meetings import fragments_of, numbers_of
from tfdist.step.local_rounds import LocalRounds
from tfdist.step.local_update import LocalUpdate
from tfdist.step.loss_scale import LossScale
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding import gathered_again
from tfdist.step.update import Update
from tfdist.step.weighting import weigh
from tfdist.structures import Structure


class StepPath:
    """Weights, accumulates, averages, clips and updates.

    Made in the strategy's scope.

    Args:
        options: the options of the optimizer.
        optimizer: the optimizer as the user gave it.
        update: updates the variables.
        loss_scale: the loss scale of the optimizer.
        variables: the trainable variables; the update is built for all of them.

    Attributes:
        accumulator: the gradients that wait for an update; None without accumulation.
        averaging: what the replicas average.
        rounds: where replicas that train apart meet; None if all updates are synchronous.
    """

    def __init__(
        self,
        options: Options,
        optimizer: keras.optimizers.Optimizer,
        update: Update,
        loss_scale: LossScale,
        variables: Sequence[keras.Variable],
    ):
        self._bucket_bytes = options.bucket_bytes
        self._update = update
        self._loss_scale = loss_scale
        # Of a weight in parts a step has the gradient of this replica's part.
        in_parts = {n: v.parts for n, v in enumerate(variables) if compat.is_sharded(v)}
        self._specs = [
            in_parts[n].spec if n in in_parts else tf.TensorSpec(v.shape, v.dtype)
            for n, v in enumerate(variables)
        ]
        self._variables = list(variables)
        local = getattr(tf.distribute.get_strategy(), "local", None)
        places = fragments_of(local, self._specs)
        self.averaging = averaging_of(
            options,
            self._specs,
            [v.path for v in variables],
            numbers_of(places),
            functools.partial(row_tables.tables_of, optimizer),
            in_parts,
            update.owners,
        )
        self.accumulator: GradientAccumulator | None = None
        if options.accumulation_steps > 1:
            self.accumulator = self.averaging.make_accumulator(
                options.accumulation_steps,
                exchange.plan_buckets(self.averaging.accumulated, options.bucket_bytes),
                len(variables),
                lambda: int(update.number().numpy()),
                options.compression is not None,
                None if local is None else self._have_begun,
                local is None or local.after > 0,
            )
        self.rounds: LocalRounds | None = None
        self._apart: LocalUpdate | None = None
        if local is not None:
            all_rounds = tf.distribute.get_strategy().all_rounds
            self.rounds = LocalRounds(
                local,
                optimizer,
                update,
                variables,
                self.averaging,
                self.accumulator,
                options.bucket_bytes,
                places,
                all_rounds.pace,
            )
            all_rounds.add(self.rounds)
            self._apart = LocalUpdate(self.rounds, update, loss_scale, self.accumulator)

    def states(self) -> dict[str, ReplicaState | None]:
        """What each replica has for itself, by the name of the optimizer's attribute."""
        compressed = self.averaging.compressed
        return {
            "accumulator": self.accumulator,
            "compression_state": None if compressed is None else compressed.state,
            "local_state": None if self.rounds is None else self.rounds.state,
            "parts_of_state": self._update.state,
        }

    def _have_begun(self) -> bool:
        """Whether replicas have trained apart."""
        return self.rounds is not None and self.rounds.state.has_rows()

    @property
    def updates_at_each_step(self) -> bool:
        """Whether every step ends in an update: no accumulation, and no loss scale to skip one."""
        return self.accumulator is None and not self._loss_scale.is_used

    def check_applied_once(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Raises ValueError at a second call in one step: each call counts as a micro-batch."""
        step = replica.current()
        if step is None or self.accumulator is None:
            return
        if id(optimizer) in step.notes.applied:
            raise ValueError(
                "With gradient accumulation an optimizer can be applied once per step, as each "
                "time counts as a micro-batch. Apply all gradients at once, use an optimizer for "
                "each group of variables, or `accumulation_steps=1`. Received: a second apply of "
                f"{optimizer.name} with accumulation_steps={self.accumulator.steps}"
            )
        step.notes.applied.add(id(optimizer))

    def order(self, gradients: Sequence[Any], variables: Sequence[keras.Variable]) -> None:
        """Computes large gradients first, as they travel longest; in replica context.

        Those of weights in parts have travelled already.
        """
        if current().replicas > 1:
            later = [g for g, v in zip(gradients, variables) if not compat.is_sharded(v)]
            backward.compute_first(later, self._bucket_bytes)

    def run(
        self,
        gradients: list,
        weight: float | tf.Tensor | None,
        variables: list[keras.Variable],
        places: list[int],
    ) -> None:
        """One step of this replica; in replica context.

        Args:
            gradients: one per variable that the update was built for: tensors,
                `tf.IndexedSlices`, or None.
            weight: the factor of the gradients; None for 1.
            variables: the variables to update.
            places: the index of each of `variables` among those that the update was built for.
        """
        if self.rounds is not None:
            self.rounds.is_applied = True
        if self.accumulator is not None:
            self.accumulator.note_trained(places)
        running = replica.current()
        apart = running is not None and running.apart is not None
        packing, packed = self._pack(gradients, weight, apart)
        parts.computed(packed)
        if running is not None and not running.notes.computed:
            running.notes.computed += tf.nest.flatten(packed, expand_composites=True)
            for act in running.notes.when_computed:
                act()

        if running is not None and apart:
            if self._apart is None:
                raise ValueError(
                    "With `local` an optimizer must be built in the strategy's scope. Build it "
                    "there, or leave that to the first step. Received: a local step with an "
                    "optimizer that was built elsewhere"
                )

            def chosen(found: Sequence[Structure]) -> list:
                # With accumulation there are zeros where there is no gradient.
                return [None if gradients[i] is None else found[i] for i in places]

            self._apart.run(running, packing, packed, variables, chosen)
            return
        if self.rounds is not None and running is not None and running.own_loop:
            raise ValueError(
                "With `local` a loop of your own says which functions are training steps: "
                "`strategy.run(tfdist.local_step(step), args=...)`. Received: an optimizer that is "
                "applied in another function"
            )

        def average_and_update(packed: list, after: Sequence[Any] = ()) -> None:
            # In a condition, as for a loss scale, other threads run this. They know of no step.
            with contextlib.nullcontext() if running is None else replica.publish(running):
                totals = self.averaging.sum(packing, packed, self._update.number())
            totals = [None if gradients[i] is None else totals[i] for i in places]
            own = [self._variables[i] for i in places]

            def update() -> None:
                spans.timed("update", totals, lambda: self._update.apply(totals, own, after))

            parts.updating(totals, update)

        finite = self._loss_scale.all_finite(packed)
        if self.accumulator is not None:
            packing, packed = self.averaging.to_accumulate(packing, packed)
            self.accumulator.add(packed, finite)
        if self.updates_at_each_step:
            average_and_update(packed, after=packed if current().replicas > 1 else ())
        else:
            tf.distribute.get_replica_context().merge_call(
                self._update_if_due, args=(average_and_update, packed, finite)
            )
        gathered_again.note_set(self._variables)

    def _pack(
        self, gradients: list, weight: float | tf.Tensor | None, apart: bool
    ) -> tuple[Packing, list]:
        """Packs and weights the gradients in one pass; without buckets if they do not travel.

        With accumulation all gradients become dense: zeros for variables without a gradient.
        """
        if self.accumulator is not None:
            gradients = [
                tf.zeros(spec.shape, spec.dtype)
                if gradient is None
                else tf.convert_to_tensor(gradient)
                for gradient, spec in zip(gradients, self._specs)
            ]
        if apart and self.accumulator is None:
            packing = Packing(gradients, self._specs, 0)
        else:
            packing = self.averaging.packing(gradients, self.accumulator is not None)
        packed = packing.pack(gradients)
        return packing, packed if weight is None else [weigh(value, weight) for value in packed]

    def _update_if_due(
        self,
        strategy: tf.distribute.Strategy,
        update_replica: Callable[..., None],
        packed: list,
        finite: tf.Tensor | None,
    ) -> None:
        """Counts the micro-batch and updates at the k-th, unless a gradient is not finite.

        Runs in cross-replica context: only there does TensorFlow allow a condition around a
        collective operation.
        """
        run = strategy.extended.call_for_each_replica
        accumulator = self.accumulator

        def finite_step() -> None:
            if accumulator is None:
                run(lambda update, values: update(values), args=(update_replica, packed))
                return
            # If the length of the data is unknown, the last step finds no batch and has no
            # gradients. Such a step must not be counted.
            parts = [strategy.experimental_local_results(value) for value in packed]
            with tf.control_dependencies([part for local in parts for part in local]):
                due, number = accumulator.count()
            take = functools.partial(accumulator.take, number)
            tf.cond(
                due,
                lambda: run(lambda update: update(take()), args=(update_replica,)),
                lambda: None,
            )

        own = None if finite is None else strategy.experimental_local_results(finite)[0]
        self._loss_scale.decide(own, finite_step)
