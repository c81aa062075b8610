"""Like run_tfdist, but notes when gradients are computed, when sums arrive, and what was sent.

Each gradient and each sum passes through a Python function on its way. This costs a little time, so
step times must not be compared with step times of other scripts.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import tfdist
from benchmarks.side_by_side import fitting, models_keras, recording, work

SAMPLE_SECONDS = 0.004


class Log:
    """What happened when, in seconds of the machine's clock.

    Attributes:
        computed: for each gradient, the variable and the time.
        arrived: for each sum, the variable and the time.
        sent: times, each with the bytes that the interface had sent until then.
        steps: when steps ended.
    """

    def __init__(self) -> None:
        self.computed: list[tuple[str, float]] = []
        self.arrived: list[tuple[str, float]] = []
        self.sent: list[tuple[float, int]] = []
        self.steps: list[float] = []

    def watch(self, interface: str) -> None:
        """Reads the interface's counter from now on."""
        counter = Path("/sys/class/net", interface, "statistics/tx_bytes")

        def read() -> None:
            while True:
                self.sent.append((time.perf_counter(), int(counter.read_text())))
                time.sleep(SAMPLE_SECONDS)

        threading.Thread(target=read, daemon=True).start()


LOG = Log()


def noted(tensor: Any, events: list[tuple[str, float]], variable: str) -> Any:
    """`tensor`; notes when it is computed. Stateful operations would run in a fixed order."""
    if isinstance(tensor, tf.IndexedSlices):
        return tensor

    def note(value: Any) -> Any:
        events.append((variable, time.perf_counter()))
        return value

    same = tf.numpy_function(note, [tensor], tensor.dtype, stateful=False)
    return tf.ensure_shape(same, tensor.shape)


class NotingComputed(tfdist.DistributedOptimizer):
    """Notes when gradients are handed to the exchange."""

    def apply(self, grads: list, trainable_variables: list | None = None) -> None:
        """As of the base class."""
        assert trainable_variables is not None
        pairs = zip(grads, trainable_variables)
        grads = [noted(gradient, LOG.computed, v.path) for gradient, v in pairs]
        super().apply(grads, trainable_variables)


class NotingArrived(keras.optimizers.SGD):
    """Notes when sums come out of the exchange."""

    def apply(self, grads: list, trainable_variables: list | None = None) -> None:
        """As of the base class."""
        assert trainable_variables is not None
        pairs = zip(grads, trainable_variables)
        # Updates wait for the end of the backward pass. The notes of sums must not wait.
        with tf.control_dependencies(None):
            grads = [noted(gradient, LOG.arrived, v.path) for gradient, v in pairs]
        super().apply(grads, trainable_variables)


class NotingSteps(recording.Recorder):
    """Notes when steps end."""

    def step_done(self, loss: float) -> None:
        """As of the base class."""
        LOG.steps.append(time.perf_counter())
        super().step_done(loss)


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    name = arguments.options["strategy"]
    recording.join(name, arguments)
    keras.utils.set_random_seed(work.SEED)
    strategy = tfdist.Strategy(name)
    rate = work.WORKS[arguments.work].learning_rate
    with strategy.scope():
        model = models_keras.build(arguments.work, keras)
        optimizer = NotingComputed(NotingArrived(rate, momentum=work.MOMENTUM))
        model.compile(optimizer, models_keras.loss(keras))
    versions = fitting.versions("keras", "tfdist")
    recorder = NotingSteps(arguments, versions, fitting.parameters(model))
    recorder.keep("log", vars(LOG))
    LOG.watch(arguments.interface)
    batch = arguments.batch * strategy.num_replicas_in_sync
    samples = work.WORKS[arguments.work].samples(batch)
    fitting.fit(model, keras, samples, batch, recorder, strategy.callbacks())


if __name__ == "__main__":
    main()
