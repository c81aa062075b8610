"""Small tensors travel together: each message between a worker and a parameter server takes time.

What travels is a dictionary. A key says which variables a tensor belongs to, by their numbers: "3",
or "0,1,4" where the values of several variables follow each other in one vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from tfdist.parameter_server.gradients import Changes, Gradients
from tfdist.parameter_server.partitions import SMALL_BYTES, is_small
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.step.adding import added
from tfdist.structures import Gradient, Structure


def places_of(key: str) -> list[int]:
    """The numbers of the variables whose values have this key."""
    return [int(place) for place in key.split(",")]


def device_of(key: str, variables: Sequence[keras.Variable]) -> str:
    """The device of the variables whose values have this key."""
    return variables[places_of(key)[0]].value.device


def plan(variables: Sequence[keras.Variable], places: Sequence[int]) -> list[str]:
    """The keys by which values of variables travel.

    Args:
        variables: all variables.
        places: the numbers of those whose values travel. Small ones of one device and dtype travel
            together.
    """
    groups: dict[tuple, list[int]] = {}
    for place in places:
        variable = variables[place]
        small = is_small(variable)
        group = (variable.value.device, variable.dtype) if small else (place,)
        groups.setdefault(group, []).append(place)
    return [",".join(map(str, group)) for group in groups.values()]


def pack(values: Mapping[str, Gradient], variables: Sequence[keras.Variable]) -> dict:
    """Packs values of one variable each, and sends them to the devices of their variables.

    Args:
        values: by the number of the variable.
        variables: all variables.
    """
    dense = [int(key) for key, value in values.items() if _is_like(value, variables[int(key)])]
    others = values.keys() - {str(place) for place in dense}
    packed = {key: value for key, value in values.items() if key in others}
    for key in plan(variables, dense):
        packed[key] = joined([values[str(place)] for place in places_of(key)])
    for key, value in packed.items():
        with tf.device(device_of(key, variables)):
            packed[key] = tf.nest.map_structure(tf.identity, value, expand_composites=True)
    return packed


def pack_all(gradients: Gradients, step: FunctionalStep) -> Gradients:
    """Packs the gradients of all optimizers; see `pack`."""
    return {key: pack(of, step.parts_for(key)) for key, of in gradients.items()}


def _is_like(value: Gradient, variable: keras.Variable) -> bool:
    """Whether a value can be packed: it is dense, and of the variable's shape and dtype."""
    if not isinstance(value, tf.Tensor):
        return False
    return value.dtype == variable.dtype and value.shape == tuple(variable.shape)


def joined(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The values of a key: as they are, or one after the other in a vector."""
    if len(values) == 1:
        return values[0]
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def unpack(packed: Mapping[str, Gradient], variables: Sequence[keras.Variable]) -> dict:
    """The values by the number of the variable, on the present device.

    Args:
        packed: values by key. Values of one variable under several keys are added.
        variables: all variables.
    """
    values: dict[str, Gradient] = {}
    for key, value in packed.items():
        for place, part in zip(places_of(key), _divided(key, value, variables)):
            values[str(place)] = added(values.get(str(place)), part)
    return values


def unpack_there(packed: Mapping[str, Gradient], variables: Sequence[keras.Variable]) -> dict:
    """As `unpack`, on the devices of the variables."""
    values: dict[str, Gradient] = {}
    for key, value in packed.items():
        with tf.device(device_of(key, variables)):
            for place, part in unpack({key: value}, variables).items():
                values[place] = added(values.get(place), part)
    return values


def on_device(
    device: str, step: FunctionalStep, gradients: Gradients, changes: Changes
) -> tuple[Gradients, Changes]:
    """Those of a step's gradients and changes that belong to variables on one device."""
    mine = {
        key: {
            place: gradient
            for place, gradient in by_variable.items()
            if device_of(place, step.parts_for(key)) == device
        }
        for key, by_variable in gradients.items()
    }
    return mine, {k: c for k, c in changes.items() if device_of(k, step.changed) == device}


class Sent:
    """Tensors that travel to a device: small ones of one dtype together, if their shapes are known.

    Args:
        structure: the tensors.
        device: the device.

    Attributes:
        tensors: what has travelled, on the device.
    """

    def __init__(self, structure: Structure, device: str):
        self._structure = structure
        flat = tf.nest.flatten(structure, expand_composites=True)
        self._shapes = [tensor.shape for tensor in flat]
        groups: dict[str | int, list[int]] = {}
        for place, tensor in enumerate(flat):
            size = tensor.shape.num_elements()
            small = size is not None and size * tensor.dtype.size <= SMALL_BYTES
            groups.setdefault(tensor.dtype.name if small else place, []).append(place)
        self._groups = list(groups.values())
        together = [joined([flat[place] for place in group]) for group in self._groups]
        with tf.device(device):
            self.tensors = [tf.identity(tensor) for tensor in together]

    def unpacked(self, tensors: Sequence[tf.Tensor]) -> Structure:
        """The structure again.

        Args:
            tensors: the attribute `tensors`, or what stands for them in another graph.
        """
        flat = list(self._shapes)
        for group, together in zip(self._groups, tensors):
            for place, part in zip(group, split(together, [self._shapes[at] for at in group])):
                flat[place] = part
        return tf.nest.pack_sequence_as(self._structure, flat, expand_composites=True)


def split(together: Gradient, shapes: Sequence[tf.TensorShape]) -> list[Gradient]:
    """What `joined` has joined."""
    if len(shapes) == 1:
        return [together]
    parts = tf.split(together, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def _divided(key: str, value: Gradient, variables: Sequence[keras.Variable]) -> list[Gradient]:
    shapes = [tf.TensorShape(variables[place].shape) for place in places_of(key)]
    return split(value, shapes)
