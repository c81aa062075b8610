"""What some options keep on a replica, beside the optimizer's slots."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.compression.choice import Choice
from tfdist.local.choices import LocalSteps
from tfdist.memory.sizes import nbytes
from tfdist.options import Options
from tfdist.step.compression_state import first_state
from tfdist.step.compression_units import plan_units


def kept_by(options: Options, weights: Sequence[keras.Variable], replicas: int) -> int:
    """The bytes of what compressors and local steps keep.

    Args:
        options: of the strategy.
        weights: the trained ones.
        replicas: of the job.

    Raises:
        ValueError: when the compressors do not go with these weights.
    """
    kept = 0
    if options.compression is not None:
        kept = _state_of(options.compression, weights, options.bucket_bytes)
    local = options.local_steps(replicas)
    if local is not None:
        kept += copies_of(local, has_residual=kept > 0) * sum(map(nbytes, weights))
    return kept


def copies_of(local: LocalSteps, has_residual: bool) -> int:
    """How often local steps keep the weights: those from the beginning of a round, and others.

    Args:
        local: the option of the strategies. Where there is an outer momentum, it is kept. With
            `overlap` what is under way is kept too.
        has_residual: whether error feedback keeps what is not sent.
    """
    under_way = 1 + has_residual if local.overlap else 0
    return 1 + (local.outer_decay > 0) + under_way


def _state_of(choice: Choice, weights: Sequence[keras.Variable], bucket_bytes: int) -> int:
    """The bytes of what compressors keep from one step to the next."""
    specs = [tf.TensorSpec(weight.shape, weight.dtype) for weight in weights]
    with warnings.catch_warnings(), tf.Graph().as_default():  # in which a tensor takes no memory
        warnings.simplefilter("ignore")  # training says what is not compressed
        units = plan_units(choice, specs, [weight.path for weight in weights], bucket_bytes)
        states = [first_state(unit.compressor, unit.bucket) for unit in units]
        tensors = [tensor for state in states for tensor in state.values()]
        return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
