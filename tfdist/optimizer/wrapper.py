"""OptimizerWrapper: a Keras optimizer that takes the place of another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat


class _Inner(tf.Module):
    """Holds the wrapped optimizer where `tf.train.Checkpoint` finds it, but Keras' saving does not.

    If Keras' saving found it, Keras would write the same variables twice.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        super().__init__(name="inner")
        self.optimizer = optimizer


class OptimizerWrapper(compat.IndexedOptimizer):
    """Has the settings, the state and the file layout of the optimizer that it wraps.

    An attribute that the wrapper does not have is read from, and set on, the inner optimizer. Saved
    files look as if the inner optimizer had written them.

    Args:
        inner: the optimizer to wrap.
        name: the wrapper's name.
    """

    _own: frozenset[str] = frozenset()
    """What the wrapper has for itself, also where the inner optimizer has it too."""

    def __init__(self, inner: keras.optimizers.Optimizer, name: str):
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        for setting in inner.get_config():
            if setting != "name":
                self.__dict__.pop(setting, None)
        if isinstance(inner, keras.optimizers.LossScaleOptimizer):
            self.inner_optimizer = inner.inner_optimizer
        self._inner = _Inner(inner)

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the inner optimizer's state for `variables`, unless it exists."""
        self._build_inner(variables)
        self._set_built_for(variables)

    def _build_inner(self, variables: list[keras.Variable]) -> None:
        if not self.unwrap().built:
            self.unwrap().build(variables)

    def _keeper(self) -> Any:
        """What keeps the state, and answers for it by the names of Keras' methods."""
        return self.unwrap()

    def unwrap(self) -> keras.optimizers.Optimizer:
        """The inner optimizer, as the user gave it."""
        return self._inner.optimizer

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Iterable[tuple]) -> keras.Variable:
        """Does what `apply` does, with pairs; Keras' own would return a counter of the wrapper's.

        Args:
            grads_and_vars: pairs of a gradient and its variable.

        Returns:
            `iterations`, as the inner optimizer would.
        """
        gradients, variables = zip(*grads_and_vars)
        self.apply(list(gradients), list(variables))
        return self.iterations

    def _given_or_built_for(self, variables: list[keras.Variable] | None) -> list[keras.Variable]:
        """The variables that `apply` was given, or those that the optimizer was built for.

        Raises:
            ValueError: without variables, before the optimizer is built.
        """
        if not variables and not self.built:
            raise ValueError(
                "Without variables `apply` updates those that the optimizer was built for. Call "
                "`optimizer.build(variables)` in the strategy's scope before the first step, or "
                f"give `apply` the variables. Received: an apply of {self.name} without variables, "
                "which is not built"
            )
        return list(variables or self.built_for)

    def _in_build_order(self, grads: list, variables: list[keras.Variable]) -> list:
        """The gradients at the positions of their variables; None for variables not given."""
        places = [self._index_of(variable) for variable in variables]
        unknown = [v.path for v, place in zip(variables, places) if place < 0]
        if unknown or len(grads) != len(variables):
            raise ValueError(
                "The gradients must belong one by one to variables that the optimizer was built "
                f"for. Received: {len(grads)} gradients for {len(variables)} variables, unknown "
                f"ones: {unknown}"
            )
        ordered: list = [None] * len(self.built_for)
        for gradient, place in zip(grads, places):
            ordered[place] = gradient
        if all(gradient is None for gradient in ordered):
            raise ValueError(
                "No gradients provided for any variable. Received: "
                f"None for each of {[v.path for v in variables]}"
            )
        return ordered

    @property
    def variables(self) -> list[keras.Variable]:
        """The inner optimizer's variables."""
        return self.unwrap().variables

    @property
    def iterations(self) -> keras.Variable:
        """The number of updates; with accumulation this is not the number of micro-batches."""
        return self.unwrap().iterations

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.unwrap().learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.unwrap().learning_rate = value

    def __getattr__(self, name: str) -> Any:
        inner = self.__dict__.get("_inner")
        if inner is None or name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(inner.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_inner")
        own = name in self._own or name in self.__dict__ or hasattr(type(self), name)
        if inner is not None and not own and hasattr(inner.optimizer, name):
            setattr(inner.optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        """Ends training: the inner optimizer may overwrite variables with their averages."""
        self._keeper().finalize_variable_values(var_list)

    def exclude_from_weight_decay(
        self, var_list: list | None = None, var_names: list[str] | None = None
    ) -> None:
        """Excludes variables from the inner optimizer's weight decay, before it is built."""
        self.unwrap().exclude_from_weight_decay(var_list, var_names)

    def counters(self) -> list[keras.Variable]:
        """What counts the updates: `iterations`, and those of a MultiOptimizer's parts."""
        inner = self.unwrap()
        every = (inner, *getattr(inner, "optimizers", ()))
        return [optimizer.iterations for optimizer in every if optimizer.built]

    def _apply_weight_decay(self, variables: list[keras.Variable]) -> None:
        compat.apply_weight_decay(self.unwrap(), variables)

    def set_weights(self, weights: list) -> None:
        """Sets the inner optimizer's variables."""
        self._keeper().set_weights(weights)

    def save_own_variables(self, store: dict) -> None:
        """Writes the inner optimizer's state, in its own layout."""
        self._keeper().save_own_variables(store)

    def load_own_variables(self, store: dict) -> None:
        """Reads the inner optimizer's state."""
        self._keeper().load_own_variables(store)
