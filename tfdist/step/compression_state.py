"""What compressors keep from one step to the next: each replica has its own."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.compression.base import Compressor, State
from tfdist.engines.current import current
from tfdist.step.exchange import Bucket
from tfdist.step.replica_rows import NOTHING, PER_REPLICA, SUM, Entry, places, total_of
from tfdist.step.replica_state import ReplicaState

residual = "residual"
"""The key of what error feedback keeps."""


class CompressionState(ReplicaState):
    """Residuals and the compressors' own state, per unit and replica.

    A saved model has every replica's state, separately for each variable, so that training goes on
    as if it had not been interrupted. If the model is read with another number of replicas, what
    all replicas had left unsent is summed and divided equally among the replicas. In an elastic job
    the sum is saved, and always divided. Another compressor can take over the state if its own has
    the same entries for the same variables, as with error feedback. Otherwise the state is dropped,
    with a warning. (A `tf.train.Checkpoint` always divides equally.)

    Args:
        units: the compressors and the variables that they work on.
    """

    def __init__(self, units: Sequence[tuple[Compressor, Bucket]]):
        super().__init__(name="compression")
        self._units = list(units)
        self._shared_keys = {
            f"{name}_{index}"
            for compressor, bucket in units
            for name in compressor.shared_state
            for index in bucket.indices
        }
        self.parts = [self._make(index) for index in range(len(self._units))]
        for part, unit in zip(self.parts, self._units):
            for name in part.keys() - unit[0].shared_state:
                first = functools.partial(_first_value, *unit, name)
                self._processes.note_own(self._local(part[name])[0], first)

    def _first(self, index: int) -> dict[str, tf.Tensor]:
        """A host's first state, of which each of its replicas has a part."""
        compressor, _ = self._units[index]
        hosts = current().hosts
        return {
            name: value / hosts.replicas
            if hosts and value.dtype.is_floating and name not in compressor.shared_state
            else value
            for name, value in first_state(*self._units[index]).items()
        }

    def _make(self, index: int) -> dict[str, tf.Variable]:
        compressor, _ = self._units[index]
        return {
            name: tf.Variable(
                value,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
                if name in compressor.shared_state
                else tf.VariableAggregation.SUM,
                name=f"compression_{index}_{name}",
            )
            for name, value in self._first(index).items()
        }

    # --- what is saved ------------------------------------------------------------------------

    def saved_as(self) -> str:
        """Per replica; as the sum where processes may leave or join."""
        return SUM if self._processes.may_change else PER_REPLICA

    def end_training(self) -> None:
        """Keeps no copy: later steps of other kinds would not be in it."""
        self._forget()

    def entries(self) -> list[Entry]:
        """What compressors keep, by unit and name."""
        return [
            Entry(
                variable,
                places(bucket, tuple(variable.shape), f"{name}_"),
                self._is_shared(f"{name}_{bucket.indices[0]}"),
            )
            for (_, bucket), part in zip(self._units, self.parts)
            for name, variable in part.items()
        ]

    def start_anew(self) -> None:
        """Resets the state to what it was before training."""
        for index, part in enumerate(self.parts):
            for name, value in self._first(index).items():
                for local in self._strategy.experimental_local_results(part[name]):
                    local.assign(value)

    def load_own_variables(self, store: dict) -> None:
        """Reads the state; if the file has none, nothing was left unsent."""
        saved = _Saved(store, self._is_shared)
        wanted = {key: shape for entry in self.entries() for key, _, shape in entry.places}
        if not saved.shapes:
            self.adopt(NOTHING)
            return
        if saved.shapes != wanted:
            tf.get_logger().warning(
                "tfdist: the model was saved with other compressors, so what these had left unsent "
                "is dropped. Saved: %s, wanted: %s",
                sorted(saved.shapes),
                sorted(wanted),
            )
            self.adopt(NOTHING)
            return
        replicas = self._strategy.num_replicas_in_sync
        if self._processes.may_change:
            self.adopt(SUM, saved.sum)
            return
        if not saved.replicas - {replicas}:
            self.adopt(PER_REPLICA, saved.row)
            return
        tf.get_logger().warning(
            "tfdist: the model was saved by %s replicas; what compression had left unsent is "
            "divided equally among %s.",
            "/".join(map(str, saved.replicas)),
            replicas,
        )
        self.adopt(SUM, saved.sum)

    def _write_sum(self, store: dict, key: str, part: np.ndarray) -> None:
        store[key] = part[None]  # as if from one replica

    def _is_shared(self, key: str) -> bool:
        return key in self._shared_keys


class _Saved:
    """The state in a file: one array per replica or, in older files, one array for all replicas.

    Args:
        store: the file's part for the state.
        is_shared: tells whether all replicas have the same values under a key.

    Attributes:
        shapes: for each key, the shape of one replica's values.
        replicas: how many replicas saved values of their own; several numbers if keys differ.
    """

    def __init__(self, store: dict, is_shared: Callable[[str], bool]):
        self._store = store
        self._is_shared = is_shared
        self._replicas: dict[str, int] = collections.Counter()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._names = set(store.keys())
        for name in self._names:
            key, _, replica = name.rpartition(".")
            shape = tuple(store[name].shape)
            if replica.isdigit() and key:
                self._replicas[key] += 1
                self.shapes[key] = shape
            else:
                self._replicas[name] = shape[0]
                self.shapes[name] = shape[1:]
        self.replicas = {n for key, n in self._replicas.items() if not is_shared(key)}

    def row(self, key: str, replica: int) -> np.ndarray:
        """What `replica` has saved."""
        name = f"{key}.{replica}"
        return self._store[name][()] if name in self._names else self._store[key][replica]

    def sum(self, key: str, _: int) -> np.ndarray:
        """The sum over the replicas; for shared values, the value of one replica."""
        count = 1 if self._is_shared(key) else self._replicas[key]
        return total_of(self.row(key, replica) for replica in range(count))


def first_state(compressor: Compressor, bucket: Bucket) -> State:
    """A unit's state before training."""
    shape = bucket.shapes[0] if compressor.per_tensor else (sum(bucket.sizes),)
    first = dict(compressor.init(tf.TensorSpec(shape, tf.float32)))
    if compressor.error_feedback:
        first[residual] = tf.zeros(shape)
    return first


def _first_value(compressor: Compressor, bucket: Bucket, name: str) -> tf.Tensor:
    return first_state(compressor, bucket)[name]
