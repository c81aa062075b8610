"""An embedding in parts."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.tensor_parallel import parts
from tfdist.tensor_parallel.mesh import Mesh
from tfdist.validation import check_integer


class Embedding(parts.InParts, keras.layers.Embedding):
    """`keras.layers.Embedding`, of which each rank has some of the rows.

    Args:
        input_dim: the number of rows of the whole table, a multiple of the number of ranks.
        output_dim: the length of a row.
        mesh: the ranks.
        **options: `embeddings_initializer`, `mask_zero`, and `name`, `trainable`, `dtype`, as of
            `keras.layers.Embedding`.

    Raises:
        ValueError: for other options, and a number of rows that cannot be divided.
        TypeError: when `mesh` is no mesh.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> keras.utils.set_random_seed(1)
    >>> mesh = tfdist.tensor_parallel.Mesh()
    >>> tfdist.tensor_parallel.Embedding(10, 4, mesh)(np.array([[0, 9]])).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, input_dim: int, output_dim: int, mesh: Mesh, **options: object):
        parts.check_mesh(mesh)
        parts.check_options(options, ("embeddings_initializer", "mask_zero"))
        own = parts.part_of_size("input_dim", input_dim, mesh)
        check_integer("output_dim", output_dim, 1)
        super().__init__(own, output_dim, **options)
        self._init_parts(mesh)
        parts.check_dtype(self)

    def build(self, input_shape: tuple | None = None) -> None:
        """Makes this rank's rows of the table that a whole layer would begin with."""
        whole = keras.layers.Embedding(
            self.input_dim * self.mesh.size,
            self.output_dim,
            embeddings_initializer=self.embeddings_initializer,
            dtype=self.dtype_policy,
        )
        build = super().build
        first = parts.begin(self.mesh, whole, [input_shape], lambda: build(input_shape))
        parts.keep_part(self.mesh, self, (0,), first)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The rows of the whole table.

        Args:
            inputs: numbers of rows, the same in all ranks.

        Raises:
            tf.errors.InvalidArgumentError: for a number that the whole table does not have.
        """
        self._check_step()
        # As integers, which are compared exactly.
        numbers = self.mesh.functions.checked(tf.cast(inputs, tf.int64))
        with tf.control_dependencies(
            [
                tf.debugging.assert_non_negative(numbers, "The table has no such row"),
                tf.debugging.assert_less(
                    numbers,
                    tf.constant(self.input_dim * self.mesh.size, tf.int64),
                    "The table has no such row",
                ),
            ]
        ):
            places = numbers - self.mesh.model_rank * self.input_dim
        is_own = (places >= 0) & (places < self.input_dim)
        rows = keras.ops.take(self.embeddings, tf.where(is_own, places, 0), axis=0)
        own = tf.where(is_own[..., tf.newaxis], rows, tf.zeros_like(rows))
        return self.mesh.functions.leave(own)
