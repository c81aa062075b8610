"""The callback that raises the learning rate step by step in the first epochs."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.arguments import check_bool
from tfdist.options import Options
from tfdist.validation import check_integer, check_number


class LearningRateWarmup(keras.callbacks.Callback):
    """Raises the learning rate linearly in the first epochs, from one replica's to the full one.

    It does the same as Horovod's `LearningRateWarmupCallback`. A global batch that is m times as
    large as the batch of one device needs a learning rate that is m times as large (the linear
    scaling rule). This rate is too large for the first updates, so the warmup begins with 1/m of
    it. The rate of the step that ends at `epoch` (a fraction, 0 when training begins) is, for
    `epoch <= warmup_epochs`,

        initial_lr / m * (1 + (m - 1) * epoch / warmup_epochs)

    After the last step of the warmup the rate is `initial_lr`, and is left to other callbacks. The
    rule and the warmup are sections 2.1 and 2.2 of Goyal et al., "Accurate, Large Minibatch SGD:
    Training ImageNet in 1 Hour" (arXiv:1706.02677).

    With the default m, pass `initial_lr = base * m`, where `base` suits the batch of one replica
    in one step. So `initial_lr` is `base * strategy.num_replicas_in_sync`, times
    `accumulation_steps` if there are any. Accumulation needs nothing else: the rate follows the
    number of samples seen. So the update after k micro-batches has the rate of one batch that is k
    times as large.

    Where Keras runs several steps at once (`steps_per_execution`), all of these steps have the rate
    of the last one.

    Args:
        initial_lr: the full learning rate, at the end of the warmup; > 0.
        warmup_epochs: the length of the warmup in epochs, >= 0; it may be a fraction.
        momentum_correction: whether the momentum of `SGD` and `RMSprop` is scaled along with the
            rate (section 3 of the paper): it holds past gradients times past learning rates. The
            momentum of other optimizers contains no learning rates.
        steps_per_epoch: the number of steps of an epoch. None for the number that `fit` knows.
        verbose: 1 prints a line at the end of the warmup.
        multiplier: m, >= 1. None for the number of replicas times `accumulation_steps`.

    Raises:
        ValueError: for arguments out of range; from `fit`, when the number of steps is not known,
            and when the learning rate of the optimizer cannot be set because it is a schedule.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> rate = 0.1 * strategy.num_replicas_in_sync
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer=keras.optimizers.SGD(rate, momentum=0.9), loss="mse")
    >>> warmup = tfdist.callbacks.LearningRateWarmup(rate, warmup_epochs=2, multiplier=4)
    >>> x, y = np.ones((32, 4)), np.ones((32, 1))
    >>> history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[warmup])
    >>> [round(value / rate, 3) for value in history.history["learning_rate"]]
    [0.625, 1.0, 1.0]

    Attributes:
        decides_in_batches: False. The callback does the same in all processes, so the processes
            need not agree after each batch.
    """

    decides_in_batches = False

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        multiplier: float | None = None,
    ):
        super().__init__()
        check_number("initial_lr", initial_lr, 0, exclusive=True)
        check_number("warmup_epochs", warmup_epochs, 0)
        if steps_per_epoch is not None:
            check_number("steps_per_epoch", steps_per_epoch, 1)
        if multiplier is not None:
            check_number("multiplier", multiplier, 1)
        check_bool("momentum_correction", momentum_correction)
        check_integer("verbose", verbose, 0)
        self.initial_lr = initial_lr
        self.warmup_epochs = warmup_epochs
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.verbose = verbose
        self.multiplier = multiplier
        self._epoch = 0
        self._steps = 1
        self._factor = 1.0
        self._momentum: _Momentum | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Looks at the model and its data."""
        optimizer = self.model.optimizer
        if not isinstance(getattr(optimizer, "learning_rate", None), keras.Variable):
            raise ValueError(
                "LearningRateWarmup sets the learning rate of the model's optimizer, so that must "
                "be a number, no schedule: compile the model with one, or put the warmup into the "
                f"schedule. Received: optimizer={type(optimizer).__name__}"
            )
        steps = self.steps_per_epoch or self.params.get("steps")
        if steps is None:
            raise ValueError(
                "LearningRateWarmup needs the number of steps of an epoch, which `fit` does not "
                "know for these data. Pass `steps_per_epoch` to the callback. "
                "Received: steps_per_epoch=None"
            )
        self._steps = steps
        self._factor = self._multiplier()
        if self.momentum_correction:
            self._momentum = _Momentum(self.model)

    def _multiplier(self) -> float:
        if self.multiplier is not None:
            return self.multiplier
        options = getattr(self.model.optimizer, "options", Options())
        return self.model.distribute_strategy.num_replicas_in_sync * options.accumulation_steps

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Sets the rate of this batch, during the warmup."""
        if self._epoch < self.warmup_epochs:
            done = min(batch + self.model.steps_per_execution, self._steps) / self._steps
            progress = min((self._epoch + done) / self.warmup_epochs, 1.0)
            self._set(self.initial_lr * ((1 + (self._factor - 1) * progress) / self._factor))

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Ends the warmup after its last epoch; adds the rate to the logs, as "learning_rate"."""
        if epoch < self.warmup_epochs <= epoch + 1:
            self._set(self.initial_lr)
            if self.verbose > 0:
                print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {self._rate():g}.")
        if logs is not None:
            logs["learning_rate"] = self._rate()

    def _rate(self) -> float:
        return float(self.model.optimizer.learning_rate.value.numpy())

    def _set(self, rate: float) -> None:
        """Sets the learning rate, and scales the momentum by the same factor."""
        old = self._rate()
        self.model.optimizer.learning_rate = rate
        new = self._rate()
        if self._momentum is not None and old not in (0.0, new):
            self._momentum.scale(tf.constant(new / old))


class _Momentum:
    """An optimizer's sums of past updates that are proportional to its learning rate.

    Args:
        model: the model with the optimizer.
    """

    def __init__(self, model: keras.Model):
        self._optimizer = _innermost(model.optimizer)
        self._strategy = model.distribute_strategy
        self._scale = tf.function(self._scale_all, autograph=False)

    def scale(self, factor: tf.Tensor) -> None:
        """Multiplies all sums by `factor`, in a single call."""
        proportional = isinstance(self._optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop))
        if proportional and self._optimizer.momentum and self._optimizer.built:
            self._scale(factor)

    def _scale_all(self, factor: tf.Tensor) -> None:
        for variable in self._optimizer.variables:
            if variable.name.endswith("_momentum"):
                for part in self._strategy.experimental_local_results(variable.value):
                    with tf.device(part.device):
                        part.assign(part * tf.cast(factor, part.dtype))


def _innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer below tfdist's wrapper and Keras' loss scaling."""
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    return inner.unwrap() if hasattr(inner, "unwrap") else inner
