"""tf_keras on one device ("single"), or with Horovod's optimizer ("horovod").

Options: "engine", either of these names; "fp16" for Horovod's compression.
"""

from __future__ import annotations

import os

# Horovod looks for tf_keras as `tf.keras`. With this variable TensorFlow puts tf_keras there.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tf_keras

from benchmarks.side_by_side import fitting, models_keras, recording, work


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    tf_keras.utils.set_random_seed(work.SEED)
    rank, ranks = 0, 1
    optimizer, callbacks, used = models_keras.optimizer(arguments.work, tf_keras), [], ["tf_keras"]
    if arguments.options["engine"] == "horovod":
        recording.join("horovod", arguments)
        import horovod.tensorflow.keras as hvd

        hvd.init()
        rank, ranks = hvd.rank(), hvd.size()
        fp16 = arguments.options.get("fp16")
        compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        used.append("horovod")
    model = models_keras.build(arguments.work, tf_keras)
    model.compile(optimizer, models_keras.loss(tf_keras))
    recorder = recording.Recorder(arguments, fitting.versions(*used), fitting.parameters(model))
    samples = work.WORKS[arguments.work].share(arguments.batch, rank, ranks)
    fitting.fit(model, tf_keras, samples, arguments.batch, recorder, callbacks)


if __name__ == "__main__":
    main()
