"""TensorFlow's MultiWorkerMirroredStrategy; the option "keras" names keras or tf_keras."""

from __future__ import annotations

import importlib

from benchmarks.side_by_side import recording, work


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    recording.join("multi_worker", arguments)
    import tensorflow as tf

    # First of all, because TensorFlow's server has to start before anything else.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from benchmarks.side_by_side import fitting, models_keras

    name = arguments.options["keras"]
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(work.SEED)
    with strategy.scope():
        model = models_keras.build(arguments.work, keras)
        model.compile(models_keras.optimizer(arguments.work, keras), models_keras.loss(keras))
    recorder = recording.Recorder(arguments, fitting.versions(name), fitting.parameters(model))
    batch = arguments.batch * strategy.num_replicas_in_sync
    samples = work.WORKS[arguments.work].samples(batch)
    # tf_keras logs the sum of the replicas' mean losses. The gradients are those of their mean.
    reported = strategy.num_replicas_in_sync
    fitting.fit(model, keras, samples, batch, recorder, [], reported)


if __name__ == "__main__":
    main()
