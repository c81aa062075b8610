"""What each process of a job of large_embeddings.py runs; the chief writes the results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.common.process import sent_here
from benchmarks.parameter_server_ranks import THREADS, _serve

IDS = 8
RATE = 0.01


class Watch:
    """The peak memory of all processes of the job, and what they send, phase by phase.

    Attributes:
        phases: what was measured, by the name of the phase.
    """

    def __init__(self):
        self._processes = _processes()
        self.phases: dict[str, dict[str, Any]] = {}
        self("start", lambda: None)

    def __call__(self, name: str, run: Callable[[], Any], steps: int = 1) -> Any:
        """Runs a phase, and returns what it returns.

        Args:
            name: of the phase.
            run: the phase.
            steps: what the phase sends and takes is divided by this.
        """
        for identity in self._processes.values():
            Path(f"/proc/{identity}/clear_refs").write_text("5")  # the peak begins anew
        before, start = sent_here(), time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        peaks: dict[str, int] = {}
        for task, identity in self._processes.items():
            kind = task.rstrip("0123456789")
            peaks[kind] = max(peaks.get(kind, 0), _peak(identity))
        sent = (sent_here() - before) / steps
        self.phases[name] = {"peak": peaks, "sent": sent, "seconds": seconds / steps}
        print(name, self.phases[name], file=sys.stderr, flush=True)
        return result


def _processes() -> dict[str, int]:
    """The processes of this job by task, such as "ps0"."""
    own = json.loads(os.environ["TF_CONFIG"])["cluster"]
    found: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is somebody else's
            continue
        given = [one for one in variables if one.startswith(b"TF_CONFIG=")]
        config = json.loads(given[0].partition(b"=")[2]) if given else {}
        if config.get("cluster") == own:
            task = f"{config['task']['type']}{config['task']['index']}"
            identity = int(folder.name)
            # Helpers that a process starts have the same variables, and are smaller.
            if task not in found or _peak(identity) > _peak(found[task]):
                found[task] = identity
    return found


def _peak(identity: int) -> int:
    """The peak memory of a process, in bytes."""
    lines = Path(f"/proc/{identity}/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


def make_data(arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Ids and targets for all steps."""
    rng = np.random.default_rng(0)
    size = arguments.batch * arguments.steps
    ids = rng.integers(0, arguments.rows, (size, IDS)).astype("int32")
    return ids, rng.normal(size=(size, 1)).astype("float32")


def partitioner(arguments: argparse.Namespace) -> tf.distribute.experimental.partitioners:
    """One part of the table for each server."""
    partitioners = tf.distribute.experimental.partitioners
    return partitioners.MinSizePartitioner(1 << 20, max_shards=arguments.servers)


def of_tfdist(arguments: argparse.Namespace) -> dict[str, dict]:
    """All phases with tfdist's `fit`."""
    import tfdist

    strategy = tfdist.Strategy(
        "parameter_server", variable_partitioner=partitioner(arguments), snapshot_every=0
    )
    watch = Watch()

    def make() -> keras.Model:
        with strategy.scope():
            inputs = keras.Input((IDS,), dtype="int32")
            rows = keras.layers.Embedding(arguments.rows, arguments.width)(inputs)
            outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
            model = keras.Model(inputs, outputs)
            model.compile(arguments.optimizer, "mse")
            model.optimizer.build(model.trainable_variables)
        return model

    model = watch("make", make)
    x, y = make_data(arguments)
    options: dict[str, Any] = {"batch_size": arguments.batch, "verbose": 0}
    first = slice(0, 2 * arguments.batch)
    model.fit(x[first], y[first], **options)
    watch("fit", lambda: model.fit(x, y, **options), arguments.steps)
    model.evaluate(x[first], y[first], **options)
    watch("evaluate", lambda: model.evaluate(x, y, **options), arguments.steps)
    watch("predict", lambda: model.predict(x, **options), arguments.steps)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        weights = Path(folder, "model.weights.h5")
        watch("save_weights", lambda: model.save_weights(weights))
        watch("load_weights", lambda: model.load_weights(weights))
        weights.unlink()
        backup = keras.callbacks.BackupAndRestore(Path(folder, "backup"))
        fit = {**options, "callbacks": [backup]}
        watch("BackupAndRestore", lambda: model.fit(x[first], y[first], **fit))
    return watch.phases


def of_tensorflow(arguments: argparse.Namespace) -> dict[str, dict]:
    """The same with TensorFlow's own strategy and loop, as far as it goes; SGD only."""
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        _serve(resolver)
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner(arguments))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    watch = Watch()
    shape = (arguments.rows, arguments.width)

    def make() -> tuple[Any, tf.Variable]:
        uniform = tf.random_uniform_initializer(-0.05, 0.05)

        def rows(**part: Any) -> tf.Tensor:
            return uniform(shape, tf.float32, **part)

        with strategy.scope():
            table = tf.Variable(rows, shape=shape, dtype=tf.float32)
            return table, tf.Variable(tf.zeros([IDS * arguments.width, 1]))

    table, kernel = watch("make", make)
    x, y = make_data(arguments)

    def dataset() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((x, y))
        return data.repeat().batch(arguments.batch, drop_remainder=True)

    @tf.function
    def step(iterator: tf.data.Iterator) -> None:
        ids, targets = next(iterator)
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, ids)
            outputs = tf.reshape(rows, [arguments.batch, -1]) @ kernel
            loss = tf.reduce_mean((outputs - targets) ** 2)
        for variable, gradient in zip(
            [*table.variables, kernel], tape.gradient(loss, [*table.variables, kernel])
        ):
            if isinstance(gradient, tf.IndexedSlices):
                scaled = tf.IndexedSlices(RATE * gradient.values, gradient.indices)
                variable.scatter_sub(scaled)
            else:
                variable.assign_sub(RATE * gradient)

    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    def train() -> None:
        for _ in range(arguments.steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    train()
    watch("fit", train, arguments.steps)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        checkpoint = tf.train.Checkpoint(table=table)
        path = watch("save_weights", lambda: checkpoint.write(str(Path(folder, "written"))))
        watch("load_weights", lambda: checkpoint.read(path))
    return watch.phases


SYSTEMS = {"tfdist": of_tfdist, "TensorFlow": of_tensorflow}


def main() -> None:
    """Writes what was measured, and ends without waiting for servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("rows", "width", "servers", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    measured = SYSTEMS[arguments.system](arguments)
    arguments.path.write_text(json.dumps(measured))
    os._exit(0)


if __name__ == "__main__":
    main()
