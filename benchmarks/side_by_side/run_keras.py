"""Keras 3 on one device: a step without any exchange."""

from __future__ import annotations

import keras

from benchmarks.side_by_side import fitting, models_keras, recording, work


def main() -> None:
    """Trains."""
    arguments = recording.parse(__doc__)
    keras.utils.set_random_seed(work.SEED)
    model = models_keras.build(arguments.work, keras)
    model.compile(models_keras.optimizer(arguments.work, keras), models_keras.loss(keras))
    recorder = recording.Recorder(arguments, fitting.versions("keras"), fitting.parameters(model))
    samples = work.WORKS[arguments.work].samples(arguments.batch)
    fitting.fit(model, keras, samples, arguments.batch, recorder, [])


if __name__ == "__main__":
    main()
