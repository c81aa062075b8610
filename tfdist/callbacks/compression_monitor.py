"""The callback that shows how much of the gradients compression sends, and warns of too little."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.validation import check_number
from tfdist.watch.numbers import Traffic

_NAMES = ("compression_ratio", "compression_residual", "compression_cosine")


class _Measurement:
    """The number of steps, and the sums of the measured values over these steps, per replica."""

    def __init__(self) -> None:
        self.sums = tf.Variable(
            tf.zeros([3]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="compression_measurement",
        )

    def record(self, parts: list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]) -> None:
        """Measures one step; in replica context.

        Args:
            parts: for each unit: the gradient, what was sent of it, and what was not sent.
        """
        gradient, sent, unsent, product = (
            tf.add_n([tf.reduce_sum(first * second) for first, second in pairs])
            for pairs in (
                [(g, g) for g, _, _ in parts],
                [(s, s) for _, s, _ in parts],
                [(u, u) for _, _, u in parts],
                [(g, s) for g, s, _ in parts],
            )
        )
        residual = tf.sqrt(tf.math.divide_no_nan(unsent, gradient))
        cosine = tf.math.divide_no_nan(product, tf.sqrt(gradient * sent))
        self.sums.assign_add(tf.stack([1.0, residual, cosine]))


class CompressionMonitor(keras.callbacks.Callback):
    """Logs in each epoch how much of the gradients compression sends, and warns of too little.

    Three values come into the logs, and so into History and TensorBoard, and into CSVLogger if it
    comes later in the list of callbacks. Each is the mean over the epoch's updates and all
    replicas:

    - `compression_ratio`: the bytes of all gradients, divided by the bytes that a replica hands to
      the exchange, payloads and uncompressed gradients together;
    - `compression_residual`: ‖e‖/‖g‖, the size of the unsent rest relative to the gradient of the
      step. Error feedback delays a gradient by about so many steps, and by more with momentum;
    - `compression_cosine`: between the gradient of the step and what was sent in the step.

    Without error feedback the residual is the step's error. Measuring takes a few passes over the
    gradients and causes no traffic between hosts in the step.

    Args:
        max_residual: larger residuals lead to a warning, once per training. Karimireddy et al.
            (ICML 2019), lemma 3, bound the residual by 2 √(1 − δ)/δ. Training with momentum suffers
            already far below that bound.
        min_cosine: smaller cosines lead to a warning, too.

    Raises:
        ValueError: for a limit that is not a number >= 0; at the beginning of training, for a model
            without compression.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> compression = tfdist.compression.TopK(0.1, min_bytes=0)
    >>> strategy = tfdist.MirroredStrategy(compression=compression)
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="sgd", loss="mse")
    >>> monitor = tfdist.callbacks.CompressionMonitor()
    >>> x, y = np.ones((8, 100)), np.ones((8, 1))
    >>> history = model.fit(x, y, verbose=0, callbacks=[monitor])
    >>> sorted(name for name in history.history if name.startswith("compression"))
    ['compression_cosine', 'compression_ratio', 'compression_residual']
    """

    def __init__(self, max_residual: float = 100.0, min_cosine: float = 0.05) -> None:
        super().__init__()
        check_number("max_residual", max_residual, 0)
        check_number("min_cosine", min_cosine, 0)
        self.max_residual = max_residual
        self.min_cosine = min_cosine
        self._warned = False
        self._measurement: _Measurement | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Starts to measure. The train function is traced anew, with the measurement in it."""
        optimizer = self.model.optimizer
        with self.model.distribute_strategy.scope():
            if hasattr(optimizer, "compression_state") and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            if getattr(optimizer, "compressed", None) is None:
                raise ValueError(
                    "CompressionMonitor needs a model whose gradients are compressed between "
                    "replicas, as with tfdist.MirroredStrategy(compression='topk'). "
                    f"Received: optimizer={type(optimizer).__name__}, without compression"
                )
            self._measurement = _Measurement()
        self._warned = False
        optimizer.compressed.monitor = self._measurement
        self.model.distribute_strategy.trace_anew(self.model)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the epoch's values to `logs`, and warns if need be."""
        residual, cosine = self._take()
        traffic = traffic_of(self.model.optimizer)
        values = (traffic.dense / max(1, traffic.sent), residual, cosine)
        if logs is not None:
            logs.update(zip(_NAMES, values))
        too_little = residual > self.max_residual or 0 <= cosine < self.min_cosine
        if too_little and not self._warned and self.model.distribute_strategy.is_chief:
            self._warned = True
            tf.get_logger().warning(
                "tfdist: in epoch %d compression leaves little of the gradients: what has not been "
                "sent is %.1f times the gradient, and the cosine between what was sent and the "
                "gradient is %.3f. Training may not converge. Send more (a larger ratio or rank), "
                "lower momentum or learning rate, or use 'dgc', which corrects for momentum.",
                epoch + 1,
                residual,
                cosine,
            )

    def _take(self) -> tuple[float, float]:
        """The means over the updates since the last call and over all replicas."""
        assert self._measurement is not None
        strategy = self.model.distribute_strategy
        local = strategy.experimental_local_results(self._measurement.sums)
        own = np.stack([part.numpy() for part in local]).sum(axis=0, dtype=np.float64)
        for part in local:
            part.assign(tf.zeros_like(part))
        count, residual, cosine = _sum_over_processes(strategy, np.asarray(own))
        return (residual / count, cosine / count) if count else (float("nan"), float("nan"))

    def on_train_end(self, logs: dict | None = None) -> None:
        """Stops measuring."""
        self.model.optimizer.compressed.monitor = None
        self.model.train_function = None


def traffic_of(optimizer: DistributedOptimizer) -> Traffic:
    """The bytes of an update with a `tfdist.DistributedOptimizer` that is built."""
    units = [] if optimizer.compressed is None else optimizer.compressed.in_use
    compressed = {index for unit in units for index in unit.bucket.indices}
    sizes = [v.value.dtype.size * int(np.prod(v.shape)) for v in optimizer.built_for]
    rest = sum(size for index, size in enumerate(sizes) if index not in compressed)
    return Traffic(rest + sum(unit.wire_bytes for unit in units), sum(sizes))


def _sum_over_processes(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """The sum of float64 `values` over the processes, the same bits in each."""
    rows = strategy.processes.all_gather(values.view(np.int64).tolist())
    return np.ascontiguousarray(rows).view(np.float64).sum(axis=0)
