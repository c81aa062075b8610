"""What a model goes with, and what the planner assumes about it; needs TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import Options
from tfdist.plan.workload import Workload
from tfdist.step.sharding.elementwise import check_elementwise, needs_whole_variables


def of(model: keras.Model, optimizer: keras.optimizers.Optimizer | None) -> list[str]:
    """What people should know about a plan for this model.

    Args:
        model: the model.
        optimizer: the model's own; None if there is none.
    """
    found = []
    if optimizer is None:
        found.append(
            "Keras knows no optimizer of the model (`model.optimizer`): SGD with momentum is "
            "assumed."
        )
    elif optimizer.gradient_accumulation_steps:
        found.append(
            "The optimizer accumulates gradients. With a strategy pass `accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}` to it, and leave it out of the optimizer. "
            "The figures are those of an exchange in each step."
        )
    steps = accumulation_steps(model)
    if steps > 1:
        found.append(
            f"The script's strategy or optimizer has accumulation_steps={steps}, so an update has "
            f"{steps} batches. The times are those of an exchange and an update for each batch, "
            "so they are too long. The memory has the accumulated gradients."
        )
    if type(model).train_step is not keras.Model.train_step:
        found.append(
            "The model has a `train_step` of its own, which is not traced: a step is taken to be "
            "one forward and one backward pass of the model."
        )
    return found


def accumulation_steps(model: keras.Model) -> int:
    """How many micro-batches an update has, by the options of the script."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, DistributedOptimizer):
        return optimizer.options.accumulation_steps
    return Options.of(model.distribute_strategy).accumulation_steps


def of_sizes(workload: Workload) -> list[str]:
    """What people should know about the sizes in a trace.

    Args:
        workload: the model's trace.
    """
    found = []
    if tables := [variable.path for variable in workload.variables if variable.rows == 0]:
        found.append(
            f"How many rows of {', '.join(tables)} a batch looks up depends on the data: no row "
            "counts here, so times and memory are too low."
        )
    if workload.unknown:
        found.append(
            f"{workload.unknown} tensors of a step have sizes that depend on the data. They count "
            "nothing, so the memory is too low."
        )
    return found


def refusals(model: keras.Model, optimizer: keras.optimizers.Optimizer | None) -> dict[str, str]:
    """The strategies and options that refuse such a model, each with the reason.

    Args:
        model: a built model.
        optimizer: the model's own; None if there is none.
    """
    found: dict[str, str] = {}
    # On a GPU Keras chooses XLA by itself, and not under a strategy.
    if getattr(model, "jit_compile", False) and not tf.config.list_physical_devices("GPU"):
        for kind in ("local", "parameter_server", 'sharding="parameters"'):
            found[kind] = "the model is compiled with jit_compile=True"
    if any(getattr(layer, "synchronized", False) for layer in compat.flatten_layers(model)):
        found["local"] = "BatchNormalization is synchronized"
    if getattr(model, "run_eagerly", False):
        found["parameter_server"] = "the model is compiled with run_eagerly=True"
    if optimizer is not None:
        try:
            check_elementwise(optimizer)
        except ValueError:
            kind = 'sharding="parameters"' if needs_whole_variables(optimizer) else "sharding"
            found[kind] = (
                f"{type(optimizer).__name__} does not update each element of a weight for itself"
            )
    return found
