"""What layers in parts have in common: first weights, files, and what they refuse."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.arguments import check_instance, shown
from tfdist.compat.sharded_weights import refuse_checkpoints
from tfdist.tensor_parallel.mesh import Mesh
from tfdist.validation import check_integer

_Layer = keras.layers.Layer if TYPE_CHECKING else object

_NO_CHECKPOINT = (
    "A tf.train.Checkpoint would have one rank's parts of layers only. Save with "
    "`mesh.save_weights(model, path)`, in all ranks. Received: a checkpoint with {}"
)

# Of each variable of a layer the axis that it is cut along, None for one that all ranks have.
Axes = Sequence[int | None]


class InParts(_Layer):  # type: ignore[misc,valid-type]
    """Mixed in before a layer of Keras that has a part of the weights of a whole one."""

    mesh: Mesh

    def _init_parts(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.supports_jit = False  # XLA compiles no exchange

    def _check_step(self) -> None:
        """Raises ValueError for what would be wrong; while a step is traced."""
        self.mesh.check_scope()
        if compat.is_in_xla():
            raise ValueError(
                "XLA cannot compile the exchange between ranks. Leave `jit_compile=True` out. "
                f"Received: a call of {self.name} in a function that XLA compiles"
            )

    def get_config(self) -> dict[str, object]:
        """Raises ValueError: a rank has no whole layer to describe."""
        raise ValueError(
            "A layer in parts is not saved with its configuration. Save the weights with "
            "`mesh.save_weights(model, path)` in all ranks, and load them into a model that your "
            f"code makes. Received: {type(self).__name__} named {self.name!r}"
        )


def check_mesh(mesh: object) -> Mesh:
    """`mesh`, checked."""
    check_instance("mesh", mesh, Mesh, "tfdist.tensor_parallel.Mesh")
    return mesh  # type: ignore[return-value]


def part_of_size(name: str, size: int, mesh: Mesh) -> int:
    """A rank's part of `size`.

    Raises:
        ValueError: unless the argument `name` is an integer, a multiple of the number of ranks.
    """
    check_integer(name, size, 1)
    if size % mesh.size:
        raise ValueError(
            f"`{name}` is divided among the {mesh.size} ranks of a model group, so it must be a "
            f"multiple of their number. Received: {name}={shown(size)}"
        )
    return size // mesh.size


def check_options(options: Mapping[str, object], allowed: Sequence[str]) -> None:
    """Raises ValueError for arguments of Keras' layer that a layer in parts does not take."""
    unknown = sorted(set(options) - {*allowed, "name", "trainable", "dtype"})
    if unknown:
        raise ValueError(
            "A layer in parts takes no regularizer, constraint, dropout and quantization: each of "
            "them would have to see whole weights, or numbers of other ranks. Use the layer of "
            f"Keras for it. Received: {unknown}"
        )


def check_dtype(layer: keras.layers.Layer) -> None:
    """Raises ValueError unless `layer` computes in a dtype that ranks sum without a loss scale."""
    if layer.compute_dtype not in ("float32", "float64"):
        raise ValueError(
            "Layers in parts compute in float32 or float64. Leave the dtype policy at one of "
            f"these. Received: {layer.compute_dtype} for {layer.name!r}"
        )


def begin(
    mesh: Mesh, whole: keras.layers.Layer, shapes: Sequence[tuple | None], build: Callable[[], None]
) -> list[np.ndarray]:
    """Builds a layer in parts; returns the first weights of the whole one.

    Initializers draw what they would draw for the whole layer, and nothing else.

    Args:
        mesh: the ranks.
        whole: a layer of Keras, not built.
        shapes: what its `build` takes.
        build: builds the layer with a part of the weights.
    """
    mesh.check_training()
    with _at_once():
        with tf.device("CPU:0"):  # a device need not have memory for the whole layer
            whole.build(*shapes)
        weights = whole.get_weights()
        state = random.getstate()
        with compat.default_seeds_kept():
            build()
        random.setstate(state)
    return weights


@contextlib.contextmanager
def _at_once() -> Iterator[None]:
    """Variables get their values now, also where Keras builds a model in a graph."""
    with tf.init_scope(), compat.outside_stateless_scope():
        yield


def keep_part(mesh: Mesh, layer: keras.layers.Layer, axes: Axes, whole: Sequence) -> None:
    """Gives `layer` its part of the weights `whole`, and makes files hold whole ones.

    Args:
        mesh: the ranks.
        layer: a built layer with a variable for each of `axes`; itself, not layers in it.
        axes: of its variables.
        whole: the weights of the whole layer, arrays.
    """
    for variable, axis, value in zip(layer.variables, axes, whole, strict=True):
        with _at_once():
            variable.assign(mesh.part_of(value, axis))
        if axis is not None:
            variable.mesh_of_parts, variable.axis_of_parts = mesh, axis
            refuse_checkpoints(variable, _NO_CHECKPOINT.format(variable.path))

    def both() -> list[tuple[keras.Variable, int | None]]:
        return list(zip(layer.variables, axes, strict=True))

    def save_own_variables(store: dict) -> None:
        if any(axis is not None and id(v) not in mesh.wholes for v, axis in both()):
            raise ValueError(
                "A rank has parts of this layer only. Save with `mesh.save_weights(model, path)`, "
                f"in all ranks. Received: a call that saves the layer {layer.name!r}"
            )
        for place, (variable, axis) in enumerate(both()):
            store[str(place)] = variable.numpy() if axis is None else mesh.wholes[id(variable)]

    def load_own_variables(store: dict) -> None:
        for place, (variable, axis) in enumerate(both()):
            value = np.asarray(store[str(place)])
            expected = list(variable.shape)
            if axis is not None:
                expected[axis] *= mesh.size
            if value.shape != tuple(expected):
                raise ValueError(
                    f"The file has another shape than the layer {layer.name!r}, whose variable "
                    f"{variable.path} is {tuple(expected)}. Received: {value.shape}"
                )
            variable.assign(mesh.part_of(value, axis))

    def refuse(name: str, error: type[Exception], *args: object, **kwargs: object) -> None:
        raise error(
            "A layer in parts keeps the variables that it was built with: LoRA and quantization "
            "would add some that its parts and files do not have. Use the layer of Keras for it. "
            f"Received: {name} of {layer.name!r}"
        )

    layer.enable_lora = functools.partial(refuse, "enable_lora", ValueError)
    # After this error `model.quantize` goes on with other layers, as it does where Keras raises it.
    layer.quantize = functools.partial(refuse, "quantize", NotImplementedError)
    layer.save_own_variables = save_own_variables
    layer.load_own_variables = load_own_variables


def mesh_of(variable: keras.Variable) -> Mesh | None:
    """The mesh whose ranks have parts of `variable`; None if each has all of it."""
    return getattr(variable, "mesh_of_parts", None)
