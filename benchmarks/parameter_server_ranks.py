"""What each process of a job of parameter_server.py runs; the chief writes the results."""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

Result = dict[str, list[float] | int]

THREADS = 16
RATE = 0.01


class Pause(keras.layers.Layer):
    """Takes some time in each step, without work for the processor."""

    def __init__(self, seconds: float):
        super().__init__()
        self._microseconds = int(1e6 * seconds)

    def call(self, inputs):
        spec = tf.TensorSpec([], tf.int64)
        slow = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(0)),
            sleep_microseconds=self._microseconds,
            output_types=[spec.dtype],
            output_shapes=[spec.shape],
        )
        zero = tf.data.experimental.from_variant(slow, spec).reduce(
            tf.constant(0, tf.int64), tf.add
        )
        return inputs + tf.cast(zero, inputs.dtype)


def make_model(layers: int, width: int, pause: float = 0.0) -> keras.Model:
    """Dense layers of the same width."""
    inputs = outputs = keras.Input((width,))
    if pause:
        outputs = Pause(pause)(outputs)
    for _ in range(layers):
        outputs = keras.layers.Dense(width, activation="tanh")(outputs)
    return keras.Model(inputs, keras.layers.Dense(10)(outputs))


def make_data(width: int, batch: int) -> tf.data.Dataset:
    """Batches without end."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64 * batch, width)).astype("float32")
    y = rng.integers(0, 10, size=64 * batch).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return data.repeat().batch(batch, drop_remainder=True)


def make_optimizer(name: str) -> keras.optimizers.Optimizer:
    """The optimizer of both systems."""
    return {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[name](RATE)


def make_loss() -> keras.losses.Loss:
    """The loss of both systems."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Watch:
    """Notes how long rounds take, and what this process computes in them."""

    def __init__(self):
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def begin(self) -> None:
        """Begins a round."""
        self._start = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Ends the round."""
        self.seconds.append(time.perf_counter() - self._start[0])
        self.processor.append(time.process_time() - self._start[1])

    def result(self, updates: int) -> Result:
        """What the benchmark reads; the first round is left out."""
        return {
            "seconds": self.seconds[1:],
            "processor": self.processor[1:],
            "updates": updates,
        }


class Epochs(keras.callbacks.Callback):
    """Watches epochs."""

    def __init__(self, watch: Watch):
        super().__init__()
        self._watch = watch

    def on_epoch_begin(self, epoch, logs=None):
        self._watch.begin()

    def on_epoch_end(self, epoch, logs=None):
        self._watch.end()


def of_tfdist(arguments: argparse.Namespace) -> Result:
    """The epochs of tfdist's `fit`, and the number of updates that were counted."""
    import tfdist

    policy = tfdist.staleness.InverseLR() if arguments.policy == "InverseLR" else None
    strategy = tfdist.Strategy("parameter_server", staleness=policy)
    with strategy.scope():
        model = make_model(arguments.layers, arguments.width, arguments.pause)
        model.compile(make_optimizer(arguments.optimizer), make_loss())
    watch = Watch()
    model.fit(
        make_data(arguments.width, arguments.batch),
        steps_per_epoch=arguments.steps,
        epochs=1 + arguments.rounds,
        verbose=0,
        callbacks=[Epochs(watch)],
    )
    return watch.result(int(model.optimizer.iterations.numpy()))


def of_tensorflow(arguments: argparse.Namespace) -> Result:
    """The same of TensorFlow's own loop: a function reads, computes and updates each variable."""
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        _serve(resolver)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make_model(arguments.layers, arguments.width, arguments.pause)
        weights = [variable.value for variable in model.trainable_variables]
        updates = tf.Variable(0, dtype=tf.int64)
        slots = [[tf.Variable(tf.zeros_like(one)) for one in weights] for _ in range(2)]
    loss = make_loss()

    def update(gradients: list[tf.Tensor]) -> None:
        """SGD, or Adam by TensorFlow's own operation, on the parameter server.

        Keras 3's optimizers do not work in this loop.
        """
        count = tf.cast(updates.assign_add(1, read_value=True), tf.float32)
        for weight, gradient, mean, square in zip(weights, gradients, *slots):
            if arguments.optimizer == "sgd":
                weight.assign_sub(RATE * gradient)
                continue
            with tf.device(weight.device):
                tf.raw_ops.ResourceApplyAdam(
                    var=weight.handle,
                    m=mean.handle,
                    v=square.handle,
                    beta1_power=0.9**count,
                    beta2_power=0.999**count,
                    lr=RATE,
                    beta1=0.9,
                    beta2=0.999,
                    epsilon=1e-7,
                    grad=gradient,
                )

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        update(tape.gradient(value, weights))
        return value

    def dataset() -> tf.data.Dataset:
        return make_data(arguments.width, arguments.batch)

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    watch = Watch()
    for _ in range(1 + arguments.rounds):
        watch.begin()
        for _ in range(arguments.steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        watch.end()
    return watch.result(int(updates.numpy()))


def _serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Runs TensorFlow's server until the chief has ended."""
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=THREADS)
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=config,
        start=True,
    )
    host, _, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["chief"][0].rpartition(":")
    seen = False
    while server is not None:
        time.sleep(1)
        try:
            socket.create_connection((host, int(port)), 1).close()
            seen = True
        except OSError:
            if seen:
                os._exit(0)


SYSTEMS: dict[str, Callable[[argparse.Namespace], dict]] = {
    "tfdist": of_tfdist,
    "TensorFlow": of_tensorflow,
}


def main() -> None:
    """Writes what was measured, and ends without waiting for servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], required=True)
    parser.add_argument("--policy", choices=["none", "InverseLR"], required=True)
    arguments = parser.parse_args()
    measured = SYSTEMS[arguments.system](arguments)
    arguments.path.write_text(json.dumps(measured))
    os._exit(0)


if __name__ == "__main__":
    main()
