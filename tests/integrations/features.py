"""What is tried of each package: functions that train under a strategy and return arrays."""

from __future__ import annotations

import contextlib
import pathlib

import keras
import numpy as np

BATCH = 8
SAMPLES = 20  # the last batch is smaller
EPOCHS = 2
_VOCABULARY = 50
_LENGTH = 6


def _random():
    return np.random.default_rng(0)


def _tokens():
    return _random().integers(1, _VOCABULARY, size=(SAMPLES, _LENGTH))


def _scope(strategy):
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def _is_chief(strategy):
    return strategy is None or strategy.is_chief


def _trained(strategy, build, x, y, callbacks=()):
    """The weights and losses of a model."""
    keras.utils.set_random_seed(1)
    with _scope(strategy):
        model = build()
        # The gradient of a key's bias in attention is nothing but roundings, and Adam with a small
        # epsilon makes them as large as any other.
        model.compile(
            keras.optimizers.Adam(0.01, epsilon=1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    given = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, callbacks=list(callbacks), **given).history
    return [*model.get_weights(), np.array(history["loss"])]


def bert(strategy, folder):
    """KerasHub: a small BERT that classifies texts."""
    import keras_hub

    def build():
        sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
        given = {"vocabulary_size": _VOCABULARY, "max_sequence_length": _LENGTH, "dropout": 0.0}
        backbone = keras_hub.models.BertBackbone(**sizes, **given)
        return keras_hub.models.BertTextClassifier(
            backbone=backbone, num_classes=3, preprocessor=None, dropout=0.0
        )

    tokens = _tokens()
    x = {
        "token_ids": tokens,
        "segment_ids": np.zeros_like(tokens),
        "padding_mask": (np.arange(_LENGTH) < 4).astype("int32") * np.ones_like(tokens),
    }
    return _trained(strategy, build, x, _random().integers(0, 3, size=SAMPLES))


def gpt2(strategy, folder):
    """KerasHub: a small GPT-2 that predicts the next token."""
    import keras_hub

    def build():
        sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
        given = {"vocabulary_size": _VOCABULARY, "max_sequence_length": _LENGTH, "dropout": 0.0}
        backbone = keras_hub.models.GPT2Backbone(**sizes, **given)
        return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)

    tokens = _tokens()
    x = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    return _trained(strategy, build, x, np.roll(tokens, -1, axis=1))


def vit(strategy, folder):
    """KerasHub: a small ViT that classifies images."""
    import keras_hub

    def build():
        sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
        none = {"dropout_rate": 0.0, "attention_dropout": 0.0}
        backbone = keras_hub.models.ViTBackbone(
            image_shape=(8, 8, 3), patch_size=(4, 4), **sizes, **none
        )
        return keras_hub.models.ViTImageClassifier(
            backbone=backbone, num_classes=3, preprocessor=None
        )

    x = _random().normal(size=(SAMPLES, 8, 8, 3)).astype("float32")
    return _trained(strategy, build, x, _random().integers(0, 3, size=SAMPLES))


def _dense():
    return keras.Sequential(
        [keras.Input((_LENGTH,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    )


def _numbers():
    random = _random()
    return random.normal(size=(SAMPLES, _LENGTH)), random.integers(0, 3, size=SAMPLES)


def tuner(strategy, folder):
    """KerasTuner: three trials with the strategy's callbacks, and the best one's parameters."""
    import keras_tuner

    def build(parameters):
        units, rate = parameters.Int("units", 4, 12), parameters.Float("rate", 1e-3, 1e-1)
        with _scope(strategy):
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [keras.Input((_LENGTH,)), keras.layers.Dense(units), keras.layers.Dense(3)]
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(rate), loss)
        return model

    rank = 0 if strategy is None else strategy.processes.rank
    search = keras_tuner.RandomSearch(
        build, "val_loss", max_trials=3, seed=1, directory=folder / f"trials-{rank}"
    )
    x, y = _numbers()
    given = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    report = folder / "report.html"
    callbacks = [] if strategy is None else strategy.callbacks(report=report)
    search.search(x, y, validation_data=(x, y), callbacks=callbacks, **given)
    if strategy is not None and strategy.is_chief:
        assert report.exists()
    best = search.get_best_hyperparameters()[0]
    return [np.array([best["units"], best["rate"]])]


def mlflow(strategy, folder):
    """MLflow: its callback, and what it has noted."""
    import mlflow

    if not _is_chief(strategy):
        return _trained(strategy, _dense, *_numbers())
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    experiment = mlflow.create_experiment("digits", artifact_location=str(folder / "artifacts"))
    with mlflow.start_run(experiment_id=experiment) as run:
        found = _trained(strategy, _dense, *_numbers(), [mlflow.keras.MlflowCallback(run)])
    noted = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert len(noted) == EPOCHS
    np.testing.assert_allclose([metric.value for metric in noted], found[-1], rtol=1e-5)
    return found


def wandb(strategy, folder):
    """Weights & Biases, offline: its callback for metrics."""
    import wandb as package
    from wandb.integration.keras import WandbMetricsLogger

    if not _is_chief(strategy):
        return _trained(strategy, _dense, *_numbers())
    with package.init(mode="offline", dir=folder, project="tfdist") as run:
        found = _trained(strategy, _dense, *_numbers(), [WandbMetricsLogger()])
        np.testing.assert_allclose(run.summary["epoch/loss"], found[-1][-1], rtol=1e-5)
    assert list(pathlib.Path(folder).glob("wandb/offline-run-*/*.wandb"))
    return found


FEATURES = {
    "KerasHub BERT": bert,
    "KerasHub GPT-2": gpt2,
    "KerasHub ViT": vit,
    "KerasTuner": tuner,
    "MLflow": mlflow,
    "Weights & Biases": wandb,
}
