"""What a synchronous strategy does where its replicas train apart for some steps."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.callbacks.rounds import Rounds
from tfdist.data import batches
from tfdist.local.choices import LocalSteps
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import Options
from tfdist.step import replica, weighting
from tfdist.step.model_optimizers import optimizers_of
from tfdist.strategies.balanced import BalancedStrategy
from tfdist.structures import Structure


class ApartStrategy(BalancedStrategy):
    """Mixed in below a synchronous strategy: its steps with the option `local`."""

    _trains_apart = False

    def _init_options(self, options: Options) -> None:
        super()._init_options(options)
        self._traced: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    @property
    def local(self) -> LocalSteps | None:
        """How the replicas train apart; None if all updates are synchronous."""
        return self.options.local_steps(self.num_replicas_in_sync)

    def finish_rounds(self, model: keras.Model) -> None:
        """Ends the rounds of the optimizers of `model`, so that the replicas have one model."""
        for optimizer in optimizers_of(model).values() if self.local is not None else ():
            if isinstance(optimizer, DistributedOptimizer):
                optimizer.finish_round()

    def callbacks_before_others(self) -> list[keras.callbacks.Callback]:
        """The callback that ends a round before other callbacks look at the model."""
        return [] if self.local is None else [Rounds(self)]

    def trains_locally(self, model: keras.Model) -> bool:
        """Whether the next step of `model` is a local one: the synchronous ones are over."""
        if self.local is None or not self.local.after:
            return self.local is not None
        with tf.init_scope():
            return _updates_of(model) >= self.local.after

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
        for optimizer in optimizers_of(model).values() if is_local else ():
            rounds = getattr(optimizer, "rounds", None)
            if rounds is not None and not rounds.state.has_rows():
                rounds.drop_synchronous()

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
            ValueError: for a batch of `train_on_batch`.
        """
        if keras_step is not None and global_size is not None:
            raise ValueError(
                "`train_on_batch` returns after each step, in the middle of a round, where the "
                "replicas have no common weights. With `local` use `fit`, or a loop of your own "
                f"with `tfdist.local_step`. Received: train_on_batch with local={self.local}"
            )
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


def _updates_of(model: keras.Model) -> int:
    """The smallest number of updates that an optimizer of `model` has made."""
    built = [optimizer for optimizer in optimizers_of(model).values() if optimizer.built]
    return min((int(optimizer.iterations.numpy()) for optimizer in built), default=0)
