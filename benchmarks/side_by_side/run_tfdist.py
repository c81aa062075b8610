"""tfdist with Keras 3; options: "strategy", "compression" and "local" as `building` takes them."""

from __future__ import annotations

import keras

from benchmarks.local_sgd import building
from benchmarks.side_by_side import fitting, models_keras, recording, work


def main() -> None:
    """Trains one rank."""
    arguments = recording.parse(__doc__)
    options = arguments.options
    name = options["strategy"]
    recording.join(name, arguments)
    keras.utils.set_random_seed(work.SEED)
    strategy = building.strategy(name, options["compression"], options.get("local"))
    with strategy.scope():
        model = models_keras.build(arguments.work, keras)
        model.compile(models_keras.optimizer(arguments.work, keras), models_keras.loss(keras))
    used = ["keras", "tfdist"] + ["horovod"] * (name == "horovod")
    recorder = recording.Recorder(arguments, fitting.versions(*used), fitting.parameters(model))
    batch = arguments.batch * strategy.num_replicas_in_sync
    samples = work.WORKS[arguments.work].samples(batch)
    fitting.fit(model, keras, samples, batch, recorder, strategy.callbacks())


if __name__ == "__main__":
    main()
