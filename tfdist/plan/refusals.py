"""Which choices `fit` would refuse, by its own checks where they can be asked; needs TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.local.choices import LocalSGD
from tfdist.memory.checks import check_divisible, check_rows
from tfdist.plan import memory
from tfdist.plan.candidate import Candidate
from tfdist.plan.workload import Workload
from tfdist.step.local_context import check_slots
from tfdist.step.local_meetings import fragments_of


def of_model(model: keras.Model, optimizer: keras.optimizers.Optimizer | None) -> dict[str, str]:
    """The strategies and options that refuse such a model, each with the reason.

    Args:
        model: a built model.
        optimizer: the model's own; None if there is none.
    """
    found: dict[str, str] = {}
    if optimizer is not None:
        found |= _of_optimizer(optimizer)
    if is_compiled(model):
        for kind in ("local", "parameter_server", 'sharding="parameters"'):
            found[kind] = "the model is compiled with jit_compile=True"
    if has_synchronized_layers(model):
        for kind in ("local", "staleness"):
            found[kind] = "BatchNormalization is synchronized"
    if getattr(model, "run_eagerly", False):
        found["parameter_server"] = "the model is compiled with run_eagerly=True"
    return found


def _of_optimizer(optimizer: keras.optimizers.Optimizer) -> dict[str, str]:
    found = {}
    if reason := _refusal(check_slots, optimizer, LocalSGD(8)):  # as with all local steps
        found["local"] = reason
    for kind, sharding in (("sharding", "optimizer"), ('sharding="parameters"', "parameters")):
        if reason := _refusal(check_divisible, optimizer, sharding):
            return {**found, kind: reason}
    return found


def of_choice(candidate: Candidate, workers: int, workload: Workload) -> tuple[str, str] | None:
    """An option that the sizes of the weights do not go with, and the reason; None for none.

    Args:
        candidate: the strategy with its options.
        workers: the number of workers.
        workload: the model's trace.
    """
    if candidate.local is not None and candidate.local.fragments > 1:
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in workload.variables]
        if reason := _refusal(fragments_of, candidate.local, specs):
            return f"local={candidate.options['local']}", reason
    if candidate.sharding is not None:
        of = memory.sizes_of(workload), candidate.sharding, workers, workload.accumulation_steps
        if reason := _refusal(check_rows, *of):
            return f"sharding={candidate.options['sharding']}", f"{reason}, tables with few rows"
    return None


def _refusal(check: Callable[..., object], *arguments: object) -> str | None:
    """What a check of `fit` names; None if it raises nothing."""
    try:
        check(*arguments)
    except ValueError as error:
        return f"`fit` refuses {str(error).rpartition('Received: ')[2].rstrip('.')}"
    return None


def is_compiled(model: keras.Model) -> bool:
    """Whether the model is compiled with `jit_compile=True`, as far as Keras tells."""
    return bool(getattr(model, "jit_compile", False)) and not chooses_xla(model)


def chooses_xla(model: keras.Model) -> bool:
    """Whether Keras chooses XLA by itself: on a GPU, and not under a strategy."""
    is_alone = compat.model_strategy(model) is None
    return is_alone and bool(tf.config.list_physical_devices("GPU"))


def has_synchronized_layers(model: keras.Model) -> bool:
    """Whether layers exchange something in the passes, as BatchNormalization may."""
    return any(getattr(layer, "synchronized", False) for layer in compat.flatten_layers(model))
