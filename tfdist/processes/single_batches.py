"""What must be equal in all processes when `train_on_batch` and its like begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.batch_checksums import of_inputs, of_targets
from tfdist.processes import digest, meeting
from tfdist.structures import Structure

_TARGETS = ("y", "sample_weight")


def agree(model: keras.Model, name: str, arguments: Mapping[str, Any]) -> None:
    """Called by all processes before they take one step.

    Args:
        model: the model.
        name: of the method, such as "train_on_batch".
        arguments: those of the method, by their names.

    Raises:
        ValueError: in all processes, where they are about to do different things, or were given
            targets or sample weights that differ. If only inputs do, there is a warning, once.
    """
    strategy = model.distribute_strategy
    facts = {key: value for key, value in arguments.items() if key != "self"}
    run = digest.of_run(model, name, facts)
    targets = [_tensors(facts.get(key)) for key in _TARGETS]
    run["checksum of targets and sample weights"] = int(of_targets(targets))
    inputs = int(of_inputs(_tensors(facts.get("x"))))
    found = meeting.meet(strategy.everyone, f"begins `{name}`", run, number=inputs)
    strategy.data.compare_inputs(found)
    digest.note_compared(model)


def _tensors(data: Structure) -> Structure:
    """`data` with tensors of the types that training computes in, whatever they were."""
    return tf.nest.map_structure(_tensor, data)


def _tensor(leaf: Structure) -> Structure:
    if not isinstance(leaf, (np.ndarray, tf.Tensor)):
        return leaf
    tensor = tf.convert_to_tensor(leaf)
    if tensor.dtype.is_floating:
        return tf.cast(tensor, keras.config.floatx())
    return tf.cast(tensor, tf.int64) if tensor.dtype.is_integer else tensor
