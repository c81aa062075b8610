"""What a synchronous strategy does where its replicas train apart for some steps."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks.rounds import AfterOthers, Rounds
from tfdist.data import batches
from tfdist.engines.contract import Engine
from tfdist.engines.processes import Processes
from tfdist.options import Options
from tfdist.processes import meeting
from tfdist.processes.between_steps import BetweenSteps
from tfdist.processes.orbax import refuse_orbax
from tfdist.step import logs as step_logs
from tfdist.step import replica, weighting
from tfdist.step.all_rounds import AllRounds
from tfdist.step.local_end import StepEnd, may_differ
from tfdist.step.local_step import LocalStep
from tfdist.step.model_rounds import BesideSteps, rounds_of, updates_of
from tfdist.strategies.timed import TimedStrategy
from tfdist.structures import Structure

_FIT = "Make it a weight of the model (`keras.Variable`, `add_weight`, or a layer's)."
_LOOP = "Say whose variables a step may set: `tfdist.local_step(step, model)`."
_APART = (
    "The ranks are not at the same step of a round of local steps: they did not train alike, or "
    "were interrupted at different steps. Let all ranks make the same steps, and save, evaluate or "
    "end a round after the same step in all ranks. After an interruption start the job again, from "
    "a saved model."
)


class ApartStrategy(TimedStrategy):
    """Mixed in below a synchronous strategy: its steps with the option `local`.

    Attributes:
        all_rounds: where the replicas meet, for all optimizers.
    """

    engine: Engine
    processes: Processes
    _has_warned = False

    def _init_options(self, options: Options) -> None:
        super()._init_options(options)
        self.all_rounds = AllRounds(self.pace)
        self._between_steps = BetweenSteps(self)
        self._traced: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._marked: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._made: dict[int, weakref.ref[tf.Variable]] = {}  # scopes may be nested

    @contextlib.contextmanager
    def scope(self) -> Iterator[tf.distribute.Strategy]:
        """A context in which models, optimizers and metrics are made for this strategy."""
        with super().scope() as scope:
            if self.local is None:
                yield scope
                return
            with tf.variable_creator_scope(self._noting):
                yield scope

    def _noting(self, create: Callable[..., tf.Variable], **arguments: object) -> tf.Variable:
        variable = create(**arguments)
        self._made[id(variable)] = weakref.ref(variable)
        return variable

    def _existing(self) -> list[tf.Variable]:
        """The variables that were made in the scope, as far as they exist."""
        self._made = {key: made for key, made in self._made.items() if made() is not None}
        return [variable for made in self._made.values() if (variable := made()) is not None]

    def finish_rounds(self) -> None:
        """Ends the rounds that are under way, so that the replicas have one model; called by all.

        All rounds of this strategy end, as models may share layers.

        Raises:
            ValueError: in all processes, when they are at different steps, or do different things;
                when a callback has set weights within a round.
        """
        self._between_steps.note_end_of_round()
        under_way = self.all_rounds.under_way()
        if under_way:
            beside = self.all_rounds.exchanging.is_under_way
            facts = {
                "updates and steps": [list(rounds.under_way) for rounds in under_way],
                "exchanges beside steps": [beside(rounds) for rounds in under_way],
            }
            meeting.meet(self.processes, "ends a round of local steps", facts, advice=_APART)
            self.all_rounds.finish()
        else:
            self.all_rounds.release()

    def callbacks_around_others(
        self, others: list[keras.callbacks.Callback]
    ) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
        """Those that end a round before others look at the model, and check what these have set."""
        sharding = self.options.sharded(self.num_replicas_in_sync)
        refuse_orbax(others, self.is_multi_process, sharding, self.local)
        if self.local is None:
            return [], []
        runs = self.local.overlap > 0 and self.engine.runs_beside_steps
        beside = BesideSteps(self.all_rounds.exchanging) if runs else None
        rounds = Rounds(self, others, beside)
        return [rounds], [AfterOthers(self, rounds)]

    def watch(self, model: keras.Model, others: list, phase: str) -> None:
        """Called before callbacks run between two steps of `model`."""
        found = {id(v): v for v in model.variables if may_differ(v)}
        for rounds in self.all_rounds.of(None):
            found.update((id(v), v) for v in rounds.averaged)
        self._between_steps.begin(others, phase, list(found.values()))

    def check_nothing_set(self, model: keras.Model) -> None:
        """Raises ValueError if callbacks have set weights since `watch` was called."""
        self._between_steps.end(model)

    def stop_watching(self) -> None:
        """Called where an exception may have stopped callbacks in a run."""
        super().stop_watching()
        self._between_steps.abandon()

    def trains_locally(self, model: keras.Model) -> bool:
        """Whether the next step of `model` is a local one; the same answer in all processes.

        Once replicas have trained apart, each has its own optimizer state and counts its own
        updates. So no synchronous update may follow, whatever `after` is by now. Before that, all
        have the same number of updates.
        """
        if self.local is None or not self.local.after:
            return self.local is not None
        with tf.init_scope():
            have_begun = any(rounds.state.has_rows() for rounds in rounds_of(model))
            return have_begun or updates_of(model) >= self.local.after

    def _notes_local(self, model: keras.Model) -> bool:
        """Whether the step of `model` that is traced now is a local one; notes the answer."""
        self._traced[model] = is_local = self.trains_locally(model)
        return is_local

    def choose_step(self, model: keras.Model, is_local: bool) -> None:
        """Makes the train step of `model` anew if it was traced as the other kind of step.

        Before the first round, what is left of synchronous training is dropped: what compressors
        have kept of gradients does not belong to differences of weights, and gradients that wait
        for an update are weighted by the replicas' shares.
        """
        if self._traced.get(model, is_local) != is_local:
            self.trace_anew(model)
        for rounds in rounds_of(model) if is_local else ():
            self.all_rounds.hold(rounds)
            if not rounds.state.has_rows():
                rounds.drop_synchronous()

    def make_logs_equal(self, model: keras.Model, logs: dict, results: dict | None = None) -> None:
        """Gives all processes the same numbers of a step, where decisions are made by them.

        Within a round a process knows its own numbers only. Metrics are read over all replicas. A
        number that a `train_step` returns without a metric becomes the mean over the processes,
        weighted by the samples that their first replicas had in the last step.

        Args:
            model: the model.
            logs: what the last step returned, and what validation has added; changed in place.
            results: those of the metrics before validation; None for those that they have.
        """
        rounds = rounds_of(model) if self.local is not None and self.processes.size > 1 else []
        if not rounds:
            return
        results = model.get_metrics_result() if results is None else results
        own = {name for name in logs if not name.startswith("val_")}
        if own <= set(results):
            return
        logs.update(step_logs.with_results(dict(logs), results, model, "train_step"))
        names = [n for n in sorted(own) if isinstance(logs[n], (int, float))]
        (samples, *_) = self.experimental_local_results(rounds[0].state.last)
        numbers = np.array([float(samples), *(logs[n] for n in names)], np.float64)
        rows = self.processes.all_gather(numbers.view(np.int64).tolist()).view(np.float64)
        with_samples = rows[rows[:, 0] > 0]
        if len(with_samples):
            means = np.average(with_samples[:, 1:], axis=0, weights=with_samples[:, 0])
            logs.update(zip(names, means.tolist()))

    def _run_marked(
        self,
        marked: LocalStep,
        args: tuple,
        kwargs: dict | None,
        options: tf.distribute.RunOptions | None,
    ) -> Any:
        """Runs a training step of a user's own loop."""
        step, model = marked.step, marked.model
        if isinstance(step, tf.types.experimental.PolymorphicFunction):
            functions = self._marked.setdefault(step, {})
            if id(model) not in functions:  # one function is traced around all replicas
                inside = LocalStep(step.python_function, model)
                functions[id(model)] = tf.function(
                    lambda args, kwargs: self._run_marked(inside, args, kwargs, options)
                )
            return functions[id(model)](args, kwargs or {})
        with self._training_apart(own_loop=True):
            if self.local is not None:
                step = self._ending(step, model, own_loop=True)
            return self.run(step, args, kwargs, options)

    def _look_out(self) -> None:
        """Warns, once, of a function that is no training step where replicas have other weights."""
        if self.local is None or self._trains_apart or self._has_warned:
            return
        with tf.init_scope():
            self._has_warned = bool(self.all_rounds.under_way())
        if self._has_warned:
            tf.get_logger().warning(
                "tfdist: a function that is no training step runs within a round of local steps, "
                "where each replica has weights of its own. If it reads weights, such as to "
                "evaluate, call `optimizer.finish_round()` before, in all ranks."
            )

    def _ending(self, step: Callable, model: keras.Model | None, own_loop: bool) -> Callable:
        """Returns a local `step`, with the end that follows it."""

        def owned() -> list[keras.Variable]:
            return [] if model is None else model.variables

        end = StepEnd(owned, self._existing, self.all_rounds, _LOOP if own_loop else _FIT)
        return end.completing(step)

    @contextlib.contextmanager
    def _training_apart(self, own_loop: bool) -> Iterator[None]:
        """In this context `run` runs a training step of replicas that train apart, if they do."""
        local = self.local
        if local is not None and own_loop and local.after:
            raise ValueError(
                "`after` counts the updates of `fit`. In a loop of your own use one strategy for "
                "the synchronous steps and leave `after` out, or train with `fit`. "
                f"Received: local={local} in a loop of your own"
            )
        self._trains_apart = local is not None
        try:
            yield
        finally:
            self._trains_apart = False

    def _apart(
        self, args: Structure, global_size: int | tf.Tensor | None, keras_step: str | None
    ) -> Callable[[int], replica.Apart]:
        """Returns a function from a local replica's number to what it knows of its step.

        Nothing is exchanged. So where the other processes' parts may have other sizes, what is
        reported counts all parts that have samples alike.

        Args:
            args: the step's arguments.
            global_size: the number of samples of a batch that is not distributed; else None.
            keras_step: the name of Keras' step, None for a step of the user's own.

        Raises:
            ValueError: for a batch of `train_on_batch`; in rounds by time.
        """
        if keras_step is not None and global_size is not None:
            raise ValueError(
                "`train_on_batch` returns after each step, in the middle of a round, where the "
                "replicas have no common weights. With `local` use `fit`, or a loop of your own "
                f"with `tfdist.local_step`. Received: train_on_batch with local={self.local}"
            )
        self._check_planned()
        found = [weighting.batch_size(part) for part in batches.local_parts(args, self)]
        sizes: list[Any] = [1 if size is None else size for size in found]
        are_known = all(isinstance(size, int) and size > 0 for size in sizes)
        replicas = self.num_replicas_in_sync

        def apart(index: int) -> replica.Apart:
            samples = tf.cast(sizes[index], tf.int64)
            if self.processes.size > 1:
                reported = weighting.even_share(replicas)
                if not are_known:
                    nonempty = tf.cast(samples > 0, tf.float32)
                    reported = weighting.Share(nonempty / replicas, nonempty)
            elif are_known:
                reported = weighting.Share(sizes[index] / sum(sizes))
            else:
                total = tf.add_n([tf.cast(size, tf.int64) for size in sizes])
                reported = weighting.share_of(samples, total)
            return replica.Apart(reported, samples)

        return apart
