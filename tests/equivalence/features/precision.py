"""mixed_float16 with dynamic loss scaling."""

from __future__ import annotations

import functools

import keras
from keras import optimizers

from tests.equivalence.harness import Feature, Outcome, default_data

_NOTE = (
    "float16 rounds each replica's part by itself: the learning rate is such that 1e-6 holds; "
    "loss scale and number of skipped steps are equal exactly"
)


def _build(initial_scale: float = 2.0**15, growth: int = 3, steps: int | None = None):
    def build() -> keras.Model:
        policy = keras.dtype_policies.DTypePolicy("mixed_float16")
        inputs = keras.Input((8,))
        x = keras.layers.Dense(16, activation="relu", dtype=policy)(inputs)
        outputs = keras.layers.Dense(3, dtype="float32")(x)
        model = keras.Model(inputs, outputs)
        inner = optimizers.SGD(1e-4, momentum=0.9, gradient_accumulation_steps=steps)
        optimizer = optimizers.LossScaleOptimizer(
            inner, initial_scale=initial_scale, dynamic_growth_steps=growth
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        return model

    return build


def _fit(model: keras.Model, overflow: tuple[int, ...] = (), samples: int = 64) -> Outcome:
    x, y = default_data(samples)
    for sample in overflow:
        x[sample] *= 6e4
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    optimizer = model.optimizer
    return Outcome.of(
        model,
        {} if overflow else history.history,
        scale=optimizer.dynamic_scale.numpy(),
        updates=optimizer.iterations.numpy(),
        counter=optimizer.step_counter.numpy(),
    )


FEATURES = [
    Feature("mixed_float16", _build(), _fit, note=_NOTE),
    Feature("mixed_float16, growing loss scale", _build(8.0, 2), _fit, note=_NOTE),
    Feature(
        "mixed_float16, overflow on one replica",
        _build(),
        functools.partial(_fit, overflow=(17,)),
        note=_NOTE,
    ),
    Feature(
        "mixed_float16, overflow on the last replica, short batch",
        _build(),
        functools.partial(_fit, overflow=(66,), samples=67),
        note=_NOTE,
    ),
    Feature(
        "mixed_float16, overflow while accumulating",
        _build(),
        functools.partial(_fit, overflow=(17,)),
        options={"accumulation_steps": 2},
        reference_build=_build(steps=2),
        note=_NOTE + "; against Keras' own accumulation on one device",
    ),
]
