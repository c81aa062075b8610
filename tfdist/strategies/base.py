"""What the synchronous strategies share: they run Keras' steps with the result of one device."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.balance import whole_batches
from tfdist.balance.callback import Balance
from tfdist.callbacks.drift import Drift
from tfdist.compat.tuning import without_tuning
from tfdist.data import absent, batches, shards
from tfdist.engines.contract import Engine
from tfdist.engines.current import alone
from tfdist.engines.processes import Processes
from tfdist.engines.replica_context import static_id
from tfdist.options import Options
from tfdist.step import end_of_data, keras_steps, local_step, own_loops, replica, weighting
from tfdist.step import logs as step_logs
from tfdist.step.compiled import compiled
from tfdist.step.sharding import gathered_again, offload
from tfdist.strategies import wrapping
from tfdist.strategies.apart import ApartStrategy
from tfdist.strategies.layer_checks import check_before_training
from tfdist.structures import Structure
from tfdist.validation import check_not_empty, check_not_legacy


class SynchronousStrategy(ApartStrategy):
    """Mixed in before a `tf.distribute.Strategy` whose replicas update together.

    Attributes:
        engine: carries tensors between the replicas.
        processes: the processes that the replicas run in.
    """

    replicas_hold_model = True
    engine: Engine
    processes: Processes

    def _init_synchronous(self, options: Options, engine: Engine) -> None:
        self._init_options(options)
        offload.check_offload(options, self.extended.worker_devices, engine.processes.size)
        self.engine = engine
        self.processes = engine.processes
        self._init_balance(options)
        self._functions: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._prepared: weakref.WeakSet = weakref.WeakSet()

    @property
    def compiles_replicas(self) -> bool:
        """True with several replicas: XLA cannot compile a function with an exchange in it."""
        return self.num_replicas_in_sync > 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and progress: the only process, or rank 0 of many."""
        return self.processes.is_chief and not self.is_evaluator

    def monitors(self, log_dir: str | os.PathLike | None) -> list[keras.callbacks.Callback]:
        """`tfdist.callbacks.Drift`, if there are rounds of local steps."""
        return [Drift()] if self.local is not None else []

    def note_compiled(self, model: keras.Model) -> None:
        """Takes note that `model` was compiled, so that it is checked again before it trains."""
        self._prepared.discard(model)  # layers may have been frozen or unfrozen before it

    def callbacks_of_runs(self) -> list[keras.callbacks.Callback]:
        """The callback that moves the shares of the replicas, if they are balanced."""
        balance = [Balance(self.balancer, lambda: self.is_chief)] if self.balancer else []
        return [*super().callbacks_of_runs(), *balance]

    def run(
        self,
        fn: Callable,
        args: tuple = (),
        kwargs: dict | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Runs `fn` on each replica; see `tf.distribute.Strategy.run`.

        Weighs losses by each replica's share of the global batch. Splits a batch that is whole.

        Raises:
            ValueError: for a step of a model of another scope; in a function that XLA compiles.
            TypeError: for a step of a legacy `tf_keras` model.
        """
        check_not_legacy(fn)
        if self.compiles_replicas and compat.is_in_xla():
            raise ValueError(
                "XLA cannot compile the exchange between replicas. Leave `jit_compile=True` out of "
                "the function that calls `run`; in `fit`, `model.compile(..., jit_compile=True)` "
                "compiles what each replica computes. Received: a call of run in such a function"
            )
        marked = local_step.marked(fn)
        if marked is not None:
            return self._run_marked(marked, args, kwargs, options)
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            return self._run_function(fn, args, kwargs, options)
        keras_step = compat.keras_step(fn)
        if keras_step is None:
            self._look_out()
            return self._run_with_shares(fn, args, kwargs, options)
        model, name = keras_step
        args = absent.as_none(args)
        if name == "train_step":
            self._prepare(model)
            if self._notes_local(model):
                with self._training_apart(own_loop=False):
                    fn = self._ending(fn, model, own_loop=False)
                    return self._run_keras_step(fn, args, kwargs, options, model, name)
        if self.compiles_replicas and model.jit_compile:
            fn = compiled(fn, model, name)
        return self._run_keras_step(fn, args, kwargs, options, model, name)

    def _run_keras_step(
        self,
        fn: Callable,
        args: tuple,
        kwargs: dict | None,
        options: tf.distribute.RunOptions | None,
        model: keras.Model,
        name: str,
    ) -> Any:
        step = keras_steps.complete(fn, model, name, step_logs.for_mean_over_replicas)
        logs = self._run_with_shares(step, args, kwargs, options, name)
        if self.num_replicas_in_sync == 1:
            return logs
        return step_logs.with_global_metrics(logs, model, name)

    def _prepare(self, model: keras.Model) -> None:
        """Checks and wraps what did not exist yet in the scope and at `compile`."""
        if model not in self._prepared:
            check_before_training(model, self, exchanges=self.local is None)
            self._prepared.add(model)
        wrapping.wrap_optimizers(model)

    def _run_with_shares(
        self,
        fn: Callable,
        args: tuple,
        kwargs: dict | None,
        options: tf.distribute.RunOptions | None,
        keras_step: str | None = None,
    ) -> Any:
        if whole_batches.are_in(args):
            step = self._cutting_step(fn, keras_step)
            results, speeds = super().run(step, args, kwargs, options)
            self._note_speeds(speeds)
            return results
        if self.num_replicas_in_sync == 1:
            return super().run(self._measured_alone(fn, keras_step), args, kwargs, options)
        global_size = None
        if keras_step and not batches.is_distributed(args):
            args = batches.as_tensors(args)
            global_size = weighting.batch_size(args)
            if global_size is not None:
                args = batches.split(args, global_size, self)
        apart = self._trains_apart
        of_local_replica = (self._apart if apart else self._shares)(args, global_size, keras_step)
        is_sizeless = self._hides_sizes(args, global_size, keras_step)
        state_of_thread = compat.StateOfThread(self)

        def step_of_replica(*args: Structure, **kwargs: Any) -> Any:
            known = of_local_replica(static_id() % len(self.extended.worker_devices))
            if is_sizeless:
                args = batches.without_static_sizes(args)
            step = self._step_of_replica(known, args, keras_step)
            with (
                alone(apart),
                state_of_thread.adopted(),
                replica.publish(step),
                gathered_again.tracing(step),
                end_of_data.nothing_without(args),
                batches.explaining_open_sizes(is_sizeless),
                self._measured(step, args, keras_step),
            ):
                return own_loops.weigh_returned(step, fn(*args, **kwargs))

        return super().run(step_of_replica, args, kwargs, options)

    def _hides_sizes(
        self, args: Structure, global_size: int | tf.Tensor | None, keras_step: str | None
    ) -> bool:
        """Whether static sizes would change what is computed; the arguments are as in `_shares`.

        No part is to be known as empty. In steps of Keras none is to be known as one sample either,
        whose shapes may mean something else, and no sizes that differ. Loops of users' own may use
        the sizes. All replicas give the same answer, so that they trace the same operations.
        """
        if global_size is not None:
            n = self.num_replicas_in_sync
            return isinstance(global_size, int) and (global_size <= n or global_size % n != 0)
        sizes = [weighting.static_batch_size(part) for part in batches.local_parts(args, self)]
        if keras_step is None:
            return 0 in sizes and self.processes.size == 1  # those of other processes are unknown
        return 0 in sizes or 1 in sizes or len(set(sizes)) > 1

    def _shares(
        self, args: Structure, global_size: int | tf.Tensor | None, keras_step: str | None
    ) -> Callable[[int], weighting.Share]:
        """Returns a function from a local replica's number to its share; call it once in each.

        Args:
            args: the step's arguments.
            global_size: the number of samples in the global batch, None where it is not known.
            keras_step: the name of Keras' step, None for a step of the user's own.
        """
        even = weighting.even_share(self.num_replicas_in_sync)
        if keras_step == "predict_step":  # has no loss to weight
            return lambda index: even
        sizes = [weighting.batch_size(part) for part in batches.local_parts(args, self)]
        if global_size is None:
            is_even = None in sizes or self._known_to_be_even(sizes, keras_step)
        else:
            is_even = isinstance(global_size, int) and global_size % self.num_replicas_in_sync == 0
        if is_even:
            return lambda index: even
        counts = [tf.cast(size, tf.int64) for size in sizes]
        if global_size is None:
            return self._uneven_shares(counts)
        total = tf.cast(global_size, tf.int64)
        return lambda index: weighting.share_of(counts[index], total)

    def _known_to_be_even(self, sizes: list, keras_step: str | None) -> bool:
        """Whether all replicas have equally many samples; `sizes` are the local replicas'."""
        return all(isinstance(s, int) for s in sizes) and len(set(sizes)) == 1

    def _uneven_shares(self, sizes: list[tf.Tensor]) -> Callable[[int], weighting.Share]:
        """The shares of local replicas with `sizes` samples, which are int64 scalars."""
        total = tf.add_n(sizes)
        return lambda index: weighting.share_of(sizes[index], total)

    def _run_function(
        self,
        fn: tf.types.experimental.PolymorphicFunction,
        args: tuple,
        kwargs: dict | None,
        options: tf.distribute.RunOptions | None,
    ) -> Any:
        """Runs a `tf.function`: one function is traced around all replicas, not one inside each."""
        if fn not in self._functions:
            run = functools.partial(self.run, fn.python_function, options=options)
            self._functions[fn] = tf.function(lambda args, kwargs: run(args=args, kwargs=kwargs))
        return self._functions[fn](args, kwargs or {})

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Splits each global batch over the replicas; see `tf.distribute.Strategy`.

        Raises:
            ValueError: when `dataset` is known to be empty.
        """
        check_not_empty(dataset)
        dataset = absent.marked(dataset)
        replicas, distribute = self.num_replicas_in_sync, super().distribute_datasets_from_function
        if self._reads_whole_batches:
            whole = self._whole_batches(dataset, shards.mapped)
            distributed = distribute(lambda _: whole, options or whole_batches.on_host())
        elif replicas > 1 and batches.has_sparse_tensors(dataset.element_spec):
            parts = shards.of_global_batches(dataset, 0, replicas, replicas)
            distributed = distribute(lambda _: parts, options)
        else:
            data = shards.each_by_itself(without_tuning(dataset), replicas)
            distributed = super().experimental_distribute_dataset(data, options)
        self._batch_specs[distributed] = absent.as_none(dataset.element_spec)
        return distributed

    def distribute_datasets_from_function(
        self, dataset_fn: Callable, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Distributes each worker's own data set; see `tf.distribute.Strategy`."""
        specs = []

        def recorded(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = dataset_fn(context)
            specs.append(dataset.element_spec)
            return without_tuning(dataset)

        distributed = super().distribute_datasets_from_function(recorded, options)
        self._batch_specs[distributed] = specs[0]
        return distributed


compat.hook_variables(lambda strategy: isinstance(strategy, SynchronousStrategy))
