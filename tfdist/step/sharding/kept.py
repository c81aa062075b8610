"""What the two kinds of sharded updates share: checks, and the state as files have it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.options import Options
from tfdist.step.local_context import index_of_replica
from tfdist.step.sharding.offload import host_of
from tfdist.step.sharding.state import PartsOfState, SlotInParts

_Optimizer = keras.optimizers.Optimizer


class ShardedUpdate:
    """An update by the user's optimizer, of whose state each replica has its own.

    Args:
        optimizer: the optimizer as the user gave it.
        options: the bucket size.

    Attributes:
        optimizer: the optimizer that updates, below any loss scaling.
        state: what each replica has of the optimizer's state; None before `build`.
        owners: for each variable the replica that updates it; empty if all do, a part each.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, options: Options):
        self._given = optimizer
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.optimizer = optimizer.inner_optimizer if scales else optimizer
        self.state: PartsOfState | None = None
        self.owners: Sequence[int] = ()
        self._bucket_bytes = options.bucket_bytes
        self._strategy = tf.distribute.get_strategy()
        self._offloads = options.offload is not None
        self._variables: list[keras.Variable] = []

    def _check(self, variables: list[keras.Variable]) -> None:
        if self._given.built:
            raise ValueError(
                "With `sharding` an optimizer's state is made for parts of variables. Give an "
                "optimizer that has not been built, and load its state afterwards. "
                f"Received: {self._given.name}, which is built"
            )
        for name in ("save_own_variables", "load_own_variables"):
            if getattr(type(self.optimizer), name) is not getattr(_Optimizer, name):
                raise ValueError(
                    "With `sharding` an optimizer's state is saved in Keras' own layout. Leave "
                    "`sharding` out for an optimizer that saves in another one. Received: "
                    f"{type(self.optimizer).__name__}, which has a `{name}` of its own"
                )
        overwritten = [v.path for v in variables if getattr(v, "overwrite_with_gradient", False)]
        if overwritten:
            raise ValueError(
                "With `sharding` variables cannot take their gradient as their value (float8 "
                f"training). Received: {overwritten}"
            )

    def _making_state(self) -> contextlib.AbstractContextManager[None]:
        """In this context variables are made where the optimizer's state is to be."""
        if not self._offloads:
            return contextlib.nullcontext()
        return compat.variables_on([host_of(d) for d in self._strategy.extended.worker_devices])

    def _updating(self) -> contextlib.AbstractContextManager[None]:
        """In this context operations run where the optimizer's state is; in replica context."""
        if not self._offloads:
            return contextlib.nullcontext()
        return tf.device(host_of(self._strategy.extended.worker_devices[index_of_replica()]))

    def number(self) -> tf.Tensor:
        """The optimizer's `iterations`."""
        return tf.convert_to_tensor(self.optimizer.iterations.value)

    def _keep(self, slots: Sequence[SlotInParts]) -> None:
        """Notes of which variables of the optimizer each replica has its own."""
        self.state = PartsOfState(slots, lambda: int(self.number().numpy()))
        # Keras also saves what is inside of an optimizer, by itself. Users get it by `unwrap`.
        several = [one for one in self._optimizers() if one is not self.optimizer]
        for one in (self._given, self.optimizer, *several):
            own: Any = one
            own.save_own_variables = functools.partial(self._save, one)
            own.load_own_variables = functools.partial(self._load, one)
            own.set_weights = self.set_weights
        for one in several:
            own = one
            own.load_own_variables = _read_with_the_others

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        """The optimizer, or those that a `MultiOptimizer` consists of."""
        return list(getattr(self.optimizer, "optimizers", [self.optimizer]))

    def set_weights(self, weights: list) -> None:
        """Refuses: one process has the parts of its replicas only."""
        raise ValueError(
            "With `sharding` the variables of an optimizer are parts. Set them with "
            "`model.load_weights` or `keras.models.load_model`. "
            f"Received: set_weights of {self._given.name} with {len(weights)} arrays"
        )

    def save_own_variables(self, store: dict) -> None:
        """Writes whole variables in Keras' layout."""
        self._save(self._given, store)

    def load_own_variables(self, store: dict) -> None:
        """Reads whole variables in Keras' layout, and keeps the parts."""
        self._load(self._given, store)

    def _save(self, optimizer: keras.optimizers.Optimizer, store: dict) -> None:
        if self.state is not None:
            self.state.write(optimizer.variables, store)

    def _load(self, optimizer: keras.optimizers.Optimizer, store: dict) -> None:
        if self.state is None or len(store.keys()) != len(optimizer.variables):
            # This says why it reads nothing.
            _Optimizer.load_own_variables(optimizer, store)
        else:
            self.state.read(optimizer.variables, store)


def _read_with_the_others(store: dict) -> None:
    """Reads nothing: a `MultiOptimizer` reads what all those that it consists of have."""
