"""TensorFlow's tutorial on parameter servers as a script for Keras 3, with one line changed.

Its cluster has no chief. python -m tests.parameter_server.tutorial FOLDER
"""

import json
import os
import pathlib
import random
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.cluster.addresses import reserved_ports

FOLDER = pathlib.Path(sys.argv[1])
WORKERS, SERVERS, STEPS = 3, 2, 8
WORDS = ["avocado", "banana", "cherry", "date", "elderberry", "fig", "grape"]


def cluster_of_servers():
    with reserved_ports(WORKERS + SERVERS) as ports:
        addresses = [f"localhost:{port}" for port in ports]
        jobs = {"worker": addresses[:WORKERS], "ps": addresses[WORKERS:]}
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=WORKERS + 4)
        spec, servers = tf.train.ClusterSpec(jobs), []
        for job, tasks in jobs.items():
            for index in range(len(tasks)):
                server = tf.distribute.Server(spec, job, index, "grpc", config=config)
                servers.append(server)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return resolver, servers


def samples(count):
    choose = random.Random(count)
    words = [choose.sample(WORDS, 3) for _ in range(count)]
    return {"words": words, "label": [["yes" if "fig" in three else "no"] for three in words]}


def with_fit(strategy):
    """`fit` with the callbacks of the tutorial, and a data set made by a function."""

    def dataset_fn(context):
        del context
        x = np.random.default_rng(0).uniform(size=(10, 10)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, x)).shuffle(10).repeat().batch(4)

    with strategy.scope():
        model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(10)])
        model.compile(keras.optimizers.SGD(), loss="mse", steps_per_execution=4)
    callbacks = [
        keras.callbacks.TensorBoard(FOLDER / "log"),
        keras.callbacks.ModelCheckpoint(FOLDER / "ckpt_{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(FOLDER / "backup"),
    ]
    # In the tutorial: x=tf.keras.utils.experimental.DatasetCreator(dataset_fn)
    x = strategy.distribute_datasets_from_function(dataset_fn)
    model.fit(x, epochs=2, steps_per_epoch=STEPS, callbacks=callbacks, verbose=0)
    files = sorted(path.name for path in FOLDER.glob("ckpt_*"))
    return {"iterations": int(model.optimizer.iterations), "files": files}


def with_a_loop(strategy):
    """The custom loop: preprocessing layers, a partitioned table, checkpoints, evaluation."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        words = keras.layers.StringLookup(vocabulary=WORDS, mask_token=None)
        labels = keras.layers.StringLookup(
            vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None
        )
        ids = keras.Input((3,), dtype="int64")
        # 8 rows of 512 KiB together, so the partitioner divides the table
        vectors = keras.layers.Embedding(words.vocabulary_size(), 16384)(ids)
        output = keras.layers.Dense(1, activation="sigmoid")(keras.ops.mean(vectors, axis=1))
        model = keras.Model(ids, output)
        optimizer = keras.optimizers.RMSprop(0.01)
        accuracy, evaluated = keras.metrics.Accuracy(), keras.metrics.Accuracy()

    def dataset_fn(count, context=None):
        del context
        data = tf.data.Dataset.from_tensor_slices(samples(count)).batch(8)
        return data.map(lambda batch: (words(batch["words"]), labels(batch["label"])))

    @tf.function
    def step(iterator):
        def in_replica(x, y):
            with tf.GradientTape() as tape:
                p = model(x, training=True)
                losses = keras.losses.BinaryCrossentropy(reduction=None)(y, p)
                loss = tf.nn.compute_average_loss(losses)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            accuracy.update_state(y, tf.cast(p > 0.5, tf.int64))
            return loss

        losses = strategy.run(in_replica, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def eval_step(iterator):
        def in_replica(x, y):
            evaluated.update_state(y, tf.cast(model(x, training=False) > 0.5, tf.int64))

        strategy.run(in_replica, args=next(iterator))

    @tf.function
    def per_worker_dataset():
        return strategy.distribute_datasets_from_function(lambda c: dataset_fn(64, c).repeat())

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(FOLDER / "loop"), max_to_keep=2)
    counts = []
    for _ in range(2):
        accuracy.reset_state()
        for _ in range(STEPS):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        manager.save()
        counts.append([int(optimizer.iterations), float(accuracy.count)])
    saved = [np.asarray(weight) for weight in model.get_weights()]
    loss = coordinator.schedule(step, args=(iterator,)).fetch()
    checkpoint.restore(manager.latest_checkpoint)
    restored = [np.array_equal(a, b) for a, b in zip(saved, model.get_weights())]

    iterator = iter(coordinator.create_per_worker_dataset(lambda: dataset_fn(16).repeat()))
    for _ in range(5):
        coordinator.schedule(eval_step, args=(iterator,))
    coordinator.join()
    return {
        "counts": counts,
        "loss": float(loss),
        "restored": [*restored, int(optimizer.iterations)],
        "evaluated": float(evaluated.count),
        "accuracy": float(evaluated.result()),
        "parts": len(model.weights[0].value.variables),
    }


def main():
    resolver, servers = cluster_of_servers()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(256 << 10, SERVERS)
    strategy = tfdist.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    facts = {"fit": with_fit(strategy), "loop": with_a_loop(strategy)}
    (FOLDER / "facts").write_text(json.dumps(facts))
    del servers
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
