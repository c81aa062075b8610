"""Dense layers in parts."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfdist.tensor_parallel import parts
from tfdist.tensor_parallel.mesh import Mesh
from tfdist.validation import check_choice, check_integer

_OPTIONS = ("activation", "use_bias", "kernel_initializer", "bias_initializer")


class Dense(parts.InParts, keras.layers.Dense):
    """`keras.layers.Dense`, of which each rank has a part of the kernel.

    Its input and output are whole: any layer may come before and after it.

    Args:
        units: the number of units of the whole layer.
        mesh: the ranks.
        split: "columns": each rank computes some of the units, and all get the output of all. The
            number of units must be a multiple of the number of ranks. "rows": each rank computes
            with some of the features of the input, and outputs are summed. The number of features
            must be a multiple.
        **options: `activation`, `use_bias`, `kernel_initializer`, `bias_initializer`, and `name`,
            `trainable`, `dtype`, as of `keras.layers.Dense`.

    Raises:
        ValueError: for other options, and numbers that cannot be divided.
        TypeError: when `mesh` is no mesh.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> keras.utils.set_random_seed(1)
    >>> mesh = tfdist.tensor_parallel.Mesh()
    >>> layer = tfdist.tensor_parallel.Dense(4, mesh, split="rows")
    >>> layer(np.ones((2, 6))).shape
    TensorShape([2, 4])
    """

    def __init__(self, units: int, mesh: Mesh, split: str = "columns", **options: object):
        parts.check_mesh(mesh)
        check_choice("split", split, ("columns", "rows"))
        parts.check_options(options, _OPTIONS)
        check_integer("units", units, 1)
        columns = split == "columns"
        own = parts.part_of_size("units", units, mesh) if columns else units
        super().__init__(own, **options)
        self._init_parts(mesh)
        parts.check_dtype(self)
        self.split, self.whole_units = split, units

    def build(self, input_shape: tuple) -> None:
        """Makes this rank's part of the weights that a whole layer would begin with."""
        columns = self.split == "columns"
        own = tuple(input_shape)
        if not columns:
            own = (*own[:-1], parts.part_of_size("features of the input", own[-1], self.mesh))
        whole = keras.layers.Dense(
            self.whole_units,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
        )
        first = parts.begin(self.mesh, whole, [input_shape], lambda: super(Dense, self).build(own))
        self.input_spec = whole.input_spec
        axes = [1, 0] if columns else [0, None]
        parts.keep_part(self.mesh, self, axes[: len(first)], first)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The output of the whole layer.

        Args:
            inputs: `[..., features]`, the same in all ranks.
            training: has no effect.
        """
        self._check_step()
        functions = self.mesh.functions
        if self.split == "columns":
            x = keras.ops.matmul(functions.enter(inputs), self.kernel)
            x = functions.join(x if self.bias is None else x + self.bias)
        else:
            x = functions.leave(keras.ops.matmul(functions.cut(inputs), self.kernel))
            x = x if self.bias is None else x + self.bias
        return x if self.activation is None else self.activation(x)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """The shape of the whole output."""
        return (*input_shape[:-1], self.whole_units)


class FeedForward(parts.InParts, keras.layers.Layer):
    """Two dense layers, of which each rank has a part of the hidden units: one sum in each pass.

    This is Megatron's block of a transformer: `Dense(hidden, activation)`, cut in columns, then
    `Dense(units)`, cut in rows. What is between them stays in parts. In files they are the layers
    `first` and `second`.

    Args:
        hidden: the number of hidden units, a multiple of the number of ranks.
        units: the number of units of the output.
        mesh: the ranks.
        activation: of the hidden units. It must treat each number for itself, as "gelu" does.
        name: of the layer.

    Raises:
        ValueError: for a number that cannot be divided; for an activation such as softmax.
        TypeError: when `mesh` is no mesh.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> keras.utils.set_random_seed(1)
    >>> mesh = tfdist.tensor_parallel.Mesh()
    >>> layer = tfdist.tensor_parallel.FeedForward(16, 4, mesh)
    >>> layer(np.ones((2, 4))).shape
    TensorShape([2, 4])
    """

    def __init__(
        self,
        hidden: int,
        units: int,
        mesh: Mesh,
        activation: str | Callable[[tf.Tensor], tf.Tensor] = "gelu",
        name: str | None = None,
    ):
        parts.check_mesh(mesh)
        own = parts.part_of_size("hidden", hidden, mesh)
        check_integer("units", units, 1)
        super().__init__(name=name)
        self.supports_masking = True  # as that of the two Dense layers
        self._init_parts(mesh)
        parts.check_dtype(self)
        self.hidden = hidden
        self.first = keras.layers.Dense(own, activation=activation, name="first")
        self.second = keras.layers.Dense(units, name="second")
        _check_elementwise(self.first.activation)

    def build(self, input_shape: tuple) -> None:
        """Makes this rank's part of the weights that whole layers would begin with."""
        between, own = ((*input_shape[:-1], n) for n in (self.hidden, self.first.units))
        self._build(self.first, self.hidden, input_shape, input_shape, (1, 0))
        self._build(self.second, self.second.units, between, own, (0, None))

    def _build(
        self, layer: keras.layers.Dense, units: int, shape: tuple, own: tuple, axes: parts.Axes
    ) -> None:
        whole = keras.layers.Dense(units, kernel_initializer=layer.kernel_initializer)
        first = parts.begin(self.mesh, whole, [shape], lambda: layer.build(own))
        parts.keep_part(self.mesh, layer, axes, first)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The output of both layers.

        Args:
            inputs: `[..., features]`, the same in all ranks.
        """
        self._check_step()
        functions = self.mesh.functions
        hidden = self.first(functions.enter(inputs))
        return functions.leave(keras.ops.matmul(hidden, self.second.kernel)) + self.second.bias

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """The shape of the whole output."""
        return (*input_shape[:-1], self.second.units)


def _check_elementwise(activation: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Raises ValueError unless `activation` of a vector is that of its two halves."""
    numbers = np.linspace(-3, 3, 8, dtype=np.float32)[np.newaxis]
    whole = np.asarray(activation(tf.constant(numbers)))
    halves = [np.asarray(activation(tf.constant(half))) for half in np.split(numbers, 2, 1)]
    if not np.allclose(whole, np.concatenate(halves, 1), atol=1e-6):
        raise ValueError(
            "The activation of hidden units must treat each number for itself, as a rank has some "
            "of them only. Take one such as 'gelu' or 'relu'. "
            f"Received: activation={getattr(activation, '__name__', activation)}"
        )
