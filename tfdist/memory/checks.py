"""What training with `sharding` refuses, asked of its own checks before it begins."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.memory.sizes import Sizes
from tfdist.memory.tracing import maker_of_copies, out_of_scopes
from tfdist.options import Options
from tfdist.step.sharding.elementwise import check_elementwise, needs_whole_variables
from tfdist.step.sharding.owned_update import UpdateOfOwned
from tfdist.step.sharding.parts import Parts
from tfdist.step.sharding.totals import check_tables
from tfdist.step.sharding.update import UpdateOfParts


def check_divisible(optimizer: keras.optimizers.Optimizer, sharding: str | None) -> None:
    """Raises ValueError if training with several replicas refuses the optimizer.

    Args:
        optimizer: as the user gave it, below any loss scaling.
        sharding: as for `tfdist.Strategy`.
    """
    if sharding is None:
        return
    is_owned = sharding != "parameters" and needs_whole_variables(optimizer)
    kind = UpdateOfOwned if is_owned else UpdateOfParts
    make = maker_of_copies(optimizer)
    # For no variables, as only replicas can make the state for some. The checks come before.
    out_of_scopes(lambda: kind(make(), Options()).build([]))
    if not is_owned:
        for one in getattr(optimizer, "optimizers", [optimizer]):  # of a `MultiOptimizer`
            check_elementwise(one)  # the copy may lack attributes


def check_rows(
    sizes: Sizes, sharding: str | None, replicas: int, accumulation_steps: int = 1
) -> None:
    """Raises ValueError if training with several replicas refuses a table, which has few rows.

    Args:
        sizes: of the model.
        sharding: as for `tfdist.Strategy`.
        replicas: how many replicas there are.
        accumulation_steps: as for `tfdist.Strategy`.
    """
    if sharding is None or replicas == 1 or (sharding != "parameters" and sizes.updates_whole):
        return
    # What is accumulated is dense; weights in parts have their sums before.
    sparse = [
        weight
        for weight in sizes.weights
        if weight.is_sparse
        and (accumulation_steps == 1 or (sharding == "parameters" and weight.is_divided))
    ]
    parts = [Parts.of(tf.TensorSpec(weight.shape, weight.dtype), replicas) for weight in sparse]
    check_tables([weight.path for weight in sparse], parts)
