"""Whether an optimizer was made in the scope of the strategy that it is used in."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.wrapper import OptimizerWrapper


def check_optimizer_scope(
    optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy
) -> None:
    """Raises ValueError unless `optimizer`, and what it wraps, were made in a strategy's scope.

    Args:
        optimizer: an optimizer of Keras, or one that tfdist has wrapped.
        strategy: the strategy.
    """
    for one in _all_of(optimizer):
        variables = _own_variables(one)
        if variables and not strategy.extended.variable_created_in_scope(
            compat.stored(variables[0])
        ):
            raise ValueError(
                f"The optimizer was not made in the scope of this {type(strategy).__name__}, so "
                "its state is not on the strategy's devices, and the strategy's options do not "
                "hold for it. Make it, and the optimizer that it wraps, inside `with "
                "strategy.scope():`, or pass its name to `compile`. "
                f"Received: optimizer={one.name} of type {type(one).__name__}"
            )


def _all_of(optimizer: keras.optimizers.Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """`optimizer`, and those inside: of a wrapper, a loss scaling or a MultiOptimizer."""
    yield optimizer
    if isinstance(optimizer, OptimizerWrapper):
        inside = [optimizer.unwrap()]
    else:
        scaled = getattr(optimizer, "inner_optimizer", None)
        inside = [scaled, *getattr(optimizer, "optimizers", ())]
    for one in inside:
        if isinstance(one, keras.optimizers.Optimizer):
            yield from _all_of(one)


def _own_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables that `optimizer` has made, without those of the optimizers inside."""
    return keras.optimizers.Optimizer.variables.fget(optimizer)
