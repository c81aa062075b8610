"""The rows of the equivalence table, by theme."""

from tests.equivalence.features import (
    accumulation,
    batches,
    callbacks,
    inputs,
    layers,
    losses,
    models,
    optimizers,
    precision,
    steps,
)

THEMES = (
    optimizers,
    accumulation,
    batches,
    losses,
    layers,
    precision,
    callbacks,
    inputs,
    models,
    steps,
)
FEATURES = [feature for theme in THEMES for feature in theme.FEATURES]
