"""What the planner assumes about a model, and leaves out of a prediction; needs TensorFlow."""

from __future__ import annotations

import dataclasses

import keras

from tfdist.memory.tracing import innermost
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.options import Options
from tfdist.plan import refusals
from tfdist.plan.workload import Workload
from tfdist.step.model_optimizers import optimizers_of

# Those of which the notes or the figures tell in other ways, or that take no time.
_TOLD = ("accumulation_steps", "seed")


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
            "The figures are those of such a strategy."
        )
    steps = accumulation_steps(model)
    if steps > 1:
        found.append(
            f"The script's strategy or optimizer has accumulation_steps={steps}, so an update has "
            f"{steps} batches and one exchange. A step is one of these batches, as in `fit`. Its "
            "time is the mean, with its part of the exchange and of the update."
        )
    return [*found, *_left_out(model)]


def _left_out(model: keras.Model) -> list[str]:
    """What the script does and no figure has."""
    found = []
    for name in ("train_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            found.append(
                f"The model has a `{name}` of its own, which is not traced: a step is taken to be "
                "one forward and one backward pass of the model."
            )
    optimizers = optimizers_of(model)
    if len({id(optimizer) for optimizer in optimizers.values()}) > 1:
        found.append(
            f"The model has several optimizers ({', '.join(sorted(optimizers))}): the figures are "
            "those of one that updates all weights, `model.optimizer` if it is set."
        )
    if refusals.has_synchronized_layers(model):
        found.append(
            "BatchNormalization is synchronized: the sums of its statistics in the passes are not "
            "in the times."
        )
    if getattr(model, "jit_compile", False) and refusals.chooses_xla(model):
        found.append(
            "On this GPU Keras chooses XLA by itself, but not under a strategy. If the script asks "
            'for jit_compile=True, `local`, `parameter_server` and sharding="parameters" refuse '
            "the model, and no exchange is beside the backward pass."
        )
    options = _options(model)
    changed = [
        f"`{field.name}`"
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != field.default and field.name not in _TOLD
    ]
    if changed:
        found.append(
            f"The script's strategy has {', '.join(changed)}: the figures and the recommended line "
            "are without, unless they name it."
        )
    return found


def at_once(model: keras.Model) -> str | None:
    """Why no gradient travels before all are there; None if each does when it is there."""
    if isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer):
        return "with a loss scale (`mixed_float16`) a step waits until all gradients are checked"
    if refusals.is_compiled(model):
        return "with jit_compile=True all gradients of a step are there at once"
    if getattr(model, "run_eagerly", False):
        return "with run_eagerly=True all gradients of a step are there at once"
    return None


def accumulation_steps(model: keras.Model) -> int:
    """How many micro-batches an update has, by the options of the script, or its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    own = optimizer and innermost(optimizer).gradient_accumulation_steps
    return own or _options(model).accumulation_steps


def _options(model: keras.Model) -> Options:
    """The options of the script's strategy, or those of its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, DistributedOptimizer):
        return optimizer.options
    return Options.of(model.distribute_strategy)


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
