"""Horovod's all-reduce of as many numbers as the model has parameters, and nothing else.

A step with Horovod takes at least as long, unless computing hides a part of the exchange.
"""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf
import tf_keras

from benchmarks.side_by_side import fitting, models_keras, recording


def main() -> None:
    """Exchanges on one rank."""
    arguments = recording.parse(__doc__)
    recording.join("horovod", arguments)
    hvd.init()
    parameters = fitting.parameters(models_keras.build(arguments.work, tf_keras))
    recorder = recording.Recorder(arguments, fitting.versions("horovod"), parameters)
    gradients = tf.random.normal([parameters], seed=hvd.rank())
    for _ in range(recorder.steps):
        hvd.allreduce(gradients, name="gradients", op=hvd.Sum)
        recorder.step_done(0.0)


if __name__ == "__main__":
    main()
