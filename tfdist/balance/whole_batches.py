"""Data sets that give each process the whole global batch; the step takes its part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.tuning import without_tuning
from tfdist.structures import Structure


class WholeBatch(NamedTuple):
    """A global batch before it is cut.

    Attributes:
        batch: a structure of tensors whose first dimension is the batch.
    """

    batch: Structure


def dataset_of(
    dataset: tf.data.Dataset,
    local_replicas: int,
    map_batches: Callable[[tf.data.Dataset, Callable], tf.data.Dataset],
) -> tf.data.Dataset:
    """For every batch of `dataset`, one `WholeBatch` for each replica of this process.

    Args:
        dataset: the global batches.
        local_replicas: the number of replicas in this process.
        map_batches: maps a data set by a function of a batch; called once with both.
    """
    whole = map_batches(without_tuning(dataset), WholeBatch)
    if local_replicas > 1:
        whole = whole.flat_map(
            lambda batch: tf.data.Dataset.from_tensors(batch).repeat(local_replicas)
        )
    return whole.prefetch(local_replicas)


def on_host() -> tf.distribute.InputOptions:
    """Lets batches stay in the host's memory: only a replica's part is sent to its device."""
    return tf.distribute.InputOptions(experimental_fetch_to_device=False)


def are_in(args: tuple[Any, ...]) -> bool:
    """Whether the arguments of a step begin with a batch that is whole."""
    return bool(args) and isinstance(args[0], WholeBatch)
