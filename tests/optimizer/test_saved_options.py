"""A file has the options that the user gave to the optimizer; the others are the strategy's."""

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES

X = np.ones((32, 4), "float32")


def _saved(path, optimizer, **options):
    """Saves a model that is compiled again with its own optimizer, so Keras keeps the wrapper."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], **options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(512)])
        model.compile(optimizer(), "mse")
        model.compile(model.optimizer, "mse")
        model.optimizer.build(model.trainable_variables)
    model.save(path)


def _loaded(path, **options):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], **options)
    with strategy.scope():
        return keras.saving.load_model(path)


def test_the_strategy_that_loads_a_file_decides_what_the_user_has_not(tmp_path):
    path = tmp_path / "model.keras"
    _saved(path, lambda: keras.optimizers.SGD(0.1), accumulation_steps=4)
    model = _loaded(path, accumulation_steps=2, bucket_bytes=12345, compression="fp16")
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    options = model.optimizer.options
    assert (options.accumulation_steps, options.bucket_bytes) == (2, 12345)
    assert options.compression is not None
    assert int(model.optimizer.iterations) == 2
    alone = keras.saving.load_model(path).optimizer
    assert alone.options == tfdist.Options()


@pytest.mark.parametrize("scaled", [False, True])
def test_what_the_user_gave_stays(scaled, tmp_path):
    def optimizer():
        given = tfdist.DistributedOptimizer("sgd", accumulation_steps=2, compression="topk")
        return keras.optimizers.LossScaleOptimizer(given) if scaled else given

    path = tmp_path / "model.keras"
    _saved(path, optimizer)
    optimizer = _loaded(path, accumulation_steps=3, bucket_bytes=77).optimizer
    assert optimizer.options.accumulation_steps == 2 and optimizer.options.bucket_bytes == 77
    assert optimizer.options.compression is not None
    assert optimizer.get_config()["bucket_bytes"] is None
    assert optimizer.get_config()["accumulation_steps"] == 2


def test_files_of_before_have_all_options():
    config = tfdist.DistributedOptimizer("sgd").get_config()
    config |= {"accumulation_steps": 3, "bucket_bytes": 99, "compression": None}
    options = tfdist.DistributedOptimizer.from_config(config).options
    assert (options.accumulation_steps, options.bucket_bytes) == (3, 99)
