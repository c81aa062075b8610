"""How workers get the values of weights: which travel together, which only once, which coded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import keras
import tensorflow as tf

from tfdist.compression.base import Compressor
from tfdist.parameter_server.packing import device_of, places_of, plan
from tfdist.parameter_server.partitions import is_small, parts_of
from tfdist.parameter_server.worker.functional_step import FunctionalStep


@dataclasses.dataclass(frozen=True)
class Reading:
    """The keys by which the values of a step's weights travel; see `packing`.

    Attributes:
        parts: the parts of the weights.
        changing: the keys of values that updates may change.
        fixed: the keys of the other values: nothing changes them while workers train.
        coded: those of `changing` that travel compressed.
    """

    parts: Sequence[keras.Variable]
    changing: Sequence[str]
    fixed: Sequence[str] = ()
    coded: Sequence[str] = ()

    @classmethod
    def plain(cls, step: FunctionalStep) -> Reading:
        """Any value may change, and all travel as they are."""
        return cls(step.parts, plan(step.parts, _trained_first(step)))

    @classmethod
    def of(cls, step: FunctionalStep, compressor: Compressor | None) -> Reading:
        """Only what the step trains or assigns to may change; weights that it trains are coded.

        Args:
            step: the step, which was traced.
            compressor: what codes the values; None for nothing.
        """
        owners = [variable for variable in step.variables for _ in parts_of(variable)]
        changed = {id(part) for part in step.changed}
        trained: list[int] = []
        others: list[int] = []
        fixed: list[int] = []
        for place in step.copied:
            part, owner = step.parts[place], owners[place]
            if id(owner) in step.by_rows:  # the rows are looked up on the server
                others.append(place)
            elif owner.trainable:
                trained.append(place)
            else:
                (others if id(part) in changed else fixed).append(place)
        if compressor is None:
            keys, coded = plan(step.parts, [*trained, *others]), []
        else:
            keys = plan(step.parts, trained)
            coded = [key for key in keys if compressor.accepts(_spec(key, step.parts))]
            keys += plan(step.parts, others)
        return cls(step.parts, keys, plan(step.parts, fixed), coded)

    def by_device(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """The keys, by the device of their values."""
        found: dict[str, list[str]] = {}
        for key in keys:
            found.setdefault(device_of(key, self.parts), []).append(key)
        return found


def _trained_first(step: FunctionalStep) -> list[int]:
    """The weights that travel, in the order in which they may be flat variables; see `flat`."""
    return sorted(step.copied, key=lambda place: not step.parts[place].trainable)


def may_be_fixed(step: FunctionalStep) -> bool:
    """Whether it may be worth while to know which values do not change."""
    owners = [variable for variable in step.variables for _ in parts_of(variable)]
    return any(not (owners[at].trainable or is_small(step.parts[at])) for at in step.copied)


def _spec(key: str, parts: Sequence[keras.Variable]) -> tf.TensorSpec:
    """Shape and dtype of the value with this key."""
    mine = [parts[place] for place in places_of(key)]
    shape = mine[0].shape if len(mine) == 1 else [sum(part.shape.num_elements() for part in mine)]
    return tf.TensorSpec(shape, mine[0].dtype)
