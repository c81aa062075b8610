"""TensorFlow's own loop for parameter servers."""

import numpy as np
import tensorflow as tf

import tfdist
from tests.own_loops import styles

STEPS = 3


def batch():
    """The batch of every step."""
    return styles.X[: styles.BATCH], styles.Y[: styles.BATCH]


def tutorial(resolver, folder):
    """Schedules steps one after the other, and one with an optimizer that is for `fit`."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        loop = styles.Tutorial()
        loop.optimizer.build(loop.model.trainable_variables)
        wrapped = styles.TutorialWrapped()

    def dataset_fn(context):
        del context
        return tf.data.Dataset.from_tensors(batch()).repeat()

    @tf.function
    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(dataset_fn)

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))

    @tf.function
    def step(iterator):
        losses = strategy.run(loop.train, args=next(iterator))
        return strategy.reduce("SUM", losses, axis=None)

    @tf.function
    def refused(iterator):
        strategy.run(wrapped.train, args=next(iterator))

    losses = []
    for _ in range(STEPS):
        loss = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        losses.append(float(loss.fetch()))
    try:
        coordinator.schedule(refused, args=(iterator,))
        coordinator.join()
        error = ""
    except ValueError as found:
        error = str(found)
    weights = [np.asarray(w).tolist() for w in loop.weights]
    return {"losses": losses, "weights": weights, "metrics": [], "error": error}
