"""What compressors keep from one step to the next, on each replica its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._compat import SaveableState
from tfdist.compression.base import Compressor, State
from tfdist.stages.exchange import Bucket

residual = "residual"
"""The name of what error feedback keeps."""


class CompressionState(SaveableState, tf.Module):
    """Residuals and the compressors' own state, per unit and replica.

    A saved model has every replica's state, for each variable by itself, so that training goes on
    as if it had not been interrupted. Read with another number of replicas, what all had left
    unsent together is divided equally among them. Another compressor sends it, if it has the same
    state for the same variables, as with error feedback; otherwise it is dropped, with a warning.
    (A `tf.train.Checkpoint` always divides equally.)

    Args:
        units: the compressors and the variables that they work on.
    """

    def __init__(self, units: Sequence[tuple[Compressor, Bucket]]):
        super().__init__(name="compression")
        self._strategy = tf.distribute.get_strategy()
        self._units = list(units)
        self._shared_keys = {
            f"{name}_{index}"
            for compressor, bucket in units
            for name in compressor.shared_state
            for index in bucket.indices
        }
        self._collected: tuple[int, dict[str, np.ndarray]] | None = None
        self._held = False
        self.is_new = False
        self.parts = [self._make(index) for index in range(len(self._units))]

    def _first(self, index: int) -> dict[str, tf.Tensor]:
        return first_state(*self._units[index])

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

    # --- all replicas' state ------------------------------------------------------------------

    def hold(self) -> None:
        """As `collect`, and until `release` nothing needs to be sent; called by all processes."""
        self.collect()
        self._held = True

    def release(self) -> None:
        """Ends what `hold` began; called by all processes."""
        self._held = False

    def collect(self) -> None:
        """Brings together what all processes have, so that one of them can save it alone.

        Called by all processes, between steps.
        """
        processes = self._strategy.processes
        if processes.size == 1 or not self.parts or self._held:
            return
        # One process may have what it had, while another one does not.
        if processes.all_gather([int(self._is_collected())]).all():
            return
        local = self._local_rows()
        keys = list(local)
        by_rank = [
            processes.broadcast([local[key] for key in keys], root)
            for root in range(processes.size)
        ]
        rows = {
            key: parts[0] if self._is_shared(key) else np.concatenate(parts)
            for key, parts in zip(keys, zip(*by_rank))
        }
        self._collected = self._checksum(), rows

    def share(self, root: int) -> None:
        """Gives all processes the state that process `root` has read; called by all."""
        self.is_new = False
        if self._strategy.processes.size == 1 or not self.parts:
            return
        replicas = self._strategy.num_replicas_in_sync
        rows = {
            key: np.zeros((1 if self._is_shared(key) else replicas, *local.shape[1:]), local.dtype)
            for key, local in self._local_rows().items()
        }
        if self._strategy.processes.rank == root:
            everything = self._all_rows()
            rows = {key: everything[key] for key in rows}
        self._set(dict(zip(rows, self._strategy.processes.broadcast(list(rows.values()), root))))

    def save_own_variables(self, store: dict) -> None:
        """Writes the state where Keras' saving asks for it."""
        for key, rows in self._all_rows().items():
            store[key] = rows

    def load_own_variables(self, store: dict) -> None:
        """Reads the state; without any, nothing was left unsent."""
        saved = {key: np.asarray(store[key]) for key in store.keys()}  # noqa: SIM118
        wanted = {key: rows.shape[1:] for key, rows in self._local_rows().items()}
        self.is_new = True
        if not saved:
            self._forget()
            return
        if {key: rows.shape[1:] for key, rows in saved.items()} != wanted:
            tf.get_logger().warning(
                "tfdist: the model was saved with other compressors, so what these had left unsent "
                "is dropped. Saved: %s, wanted: %s",
                sorted(saved),
                sorted(wanted),
            )
            self._forget()
            return
        replicas = self._strategy.num_replicas_in_sync
        private = [key for key in saved if not self._is_shared(key)]
        before = {len(saved[key]) for key in private} - {replicas}
        if before:
            tf.get_logger().warning(
                "tfdist: the model was saved by %s replicas; what compression had left unsent is "
                "divided equally among %s.",
                "/".join(map(str, before)),
                replicas,
            )
        for key in private if before else ():
            equal = saved[key].sum(axis=0, keepdims=True) / replicas
            saved[key] = np.repeat(equal.astype(saved[key].dtype), replicas, axis=0)
        self._set(saved)

    def _forget(self) -> None:
        """Begins anew, as before training."""
        for index, part in enumerate(self.parts):
            for name, value in self._first(index).items():
                for local in self._local(part[name]):
                    local.assign(value)
        self._collected = None

    def _is_shared(self, key: str) -> bool:
        return key in self._shared_keys

    def _is_collected(self) -> bool:
        return self._collected is not None and self._collected[0] == self._checksum()

    def _all_rows(self) -> dict[str, np.ndarray]:
        if getattr(self._strategy, "processes", None) is None or not self.parts:
            return self._local_rows()
        if self._strategy.processes.size == 1:
            return self._local_rows()
        if self._collected is None or not self._is_collected():
            raise RuntimeError(
                "Each rank has a compression state of its own, and the others' was not asked for. "
                "Save the model with `model.save` or `model.save_weights` on all ranks. "
                f"Received: rank {self._strategy.processes.rank} saves alone"
            )
        return self._collected[1]

    def _local(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        return self._strategy.experimental_local_results(variable)

    def _checksum(self) -> int:
        """Of what this process has."""
        state = 0
        for variable in (v for part in self.parts for v in part.values()):
            for local in self._local(variable):
                state = zlib.crc32(local.numpy().tobytes(), state)
        return state

    def _local_rows(self) -> dict[str, np.ndarray]:
        """This process' state by entry and variable, one row per replica; one row if shared."""
        rows = {}
        for (_, bucket), part in zip(self._units, self.parts):
            for name, variable in part.items():
                key = f"{name}_{bucket.indices[0]}"
                local = self._local(variable)[: 1 if self._is_shared(key) else None]
                values = np.stack([replica.numpy() for replica in local])
                for index, slot, shape in _places(bucket, values.shape[1:]):
                    rows[f"{name}_{index}"] = values[:, slot].reshape(len(values), *shape)
        return rows

    def _set(self, rows: dict[str, np.ndarray]) -> None:
        """Sets this process' replicas to their rows."""
        processes = getattr(self._strategy, "processes", None)
        for (_, bucket), part in zip(self._units, self.parts):
            for name, variable in part.items():
                local = self._local(variable)
                first = processes.rank * len(local) if processes else 0
                for place, replica in enumerate(local):
                    value = np.empty(replica.shape, np.float32)
                    for index, slot, _ in _places(bucket, tuple(replica.shape)):
                        key = f"{name}_{index}"
                        row = rows[key][0 if self._is_shared(key) else first + place]
                        value[slot] = row.reshape(np.shape(value[slot]))
                    replica.assign(value)
        self._collected = self._checksum(), rows


def first_state(compressor: Compressor, bucket: Bucket) -> State:
    """A unit's state before training."""
    shape = bucket.shapes[0] if compressor.per_tensor else (sum(bucket.sizes),)
    first = dict(compressor.init(tf.TensorSpec(shape, tf.float32)))
    if compressor.error_feedback:
        first[residual] = tf.zeros(shape)
    return first


def _places(bucket: Bucket, shape: tuple[int, ...]) -> list[tuple[int, Any, tuple[int, ...]]]:
    """Which variables an entry of the state of this shape belongs to, and where each one is."""
    if shape != (sum(bucket.sizes),):
        return [(bucket.indices[0], ..., shape)]
    ends = np.cumsum(bucket.sizes).tolist()
    slots = [slice(end - size, end) for end, size in zip(ends, bucket.sizes)]
    return list(zip(bucket.indices, slots, bucket.shapes))
