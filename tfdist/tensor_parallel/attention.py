"""Attention in parts."""

from __future__ import annotations

import types

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.tensor_parallel import parts
from tfdist.tensor_parallel.mesh import Mesh
from tfdist.validation import check_integer

_OPTIONS = ("value_dim", "use_bias", "kernel_initializer", "bias_initializer")


class MultiHeadAttention(parts.InParts, keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention`, of which each rank has some of the heads.

    Args:
        num_heads: the number of heads of the whole layer, a multiple of the number of ranks.
        key_dim: the size of each head for query and key.
        mesh: the ranks.
        **options: `value_dim`, `use_bias`, `kernel_initializer`, `bias_initializer`, and `name`,
            `trainable`, `dtype`, as of `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: for other options, such as `dropout`, whose random numbers would not be those of
            the whole layer; for a number of heads that cannot be divided.
        TypeError: when `mesh` is no mesh.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> keras.utils.set_random_seed(1)
    >>> mesh = tfdist.tensor_parallel.Mesh()
    >>> layer = tfdist.tensor_parallel.MultiHeadAttention(2, 4, mesh)
    >>> x = np.ones((2, 5, 8), "float32")
    >>> layer(x, x).shape
    TensorShape([2, 5, 8])
    """

    def __init__(self, num_heads: int, key_dim: int, mesh: Mesh, **options: object):
        parts.check_mesh(mesh)
        parts.check_options(options, _OPTIONS)
        own = parts.part_of_size("num_heads", num_heads, mesh)
        check_integer("key_dim", key_dim, 1)
        # The whole layer has the same initializer, so that it is made, and draws a seed, once.
        initializer = keras.initializers.get(options.get("kernel_initializer", "glorot_uniform"))
        options["kernel_initializer"] = initializer
        super().__init__(own, key_dim, **options)
        self._init_parts(mesh)
        parts.check_dtype(self)
        self._whole = {"num_heads": num_heads, "key_dim": key_dim, **options}

    def build(self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None) -> None:
        """Makes this rank's part of the weights that a whole layer would begin with."""
        shapes = [query_shape, value_shape, key_shape]
        build = super().build
        whole = keras.layers.MultiHeadAttention(**{**self._whole, "name": "whole"})
        parts.begin(self.mesh, whole, shapes, lambda: build(*shapes))
        for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
            own, first = getattr(self, name), getattr(whole, name).get_weights()
            axes = (0, None) if name == "output_dense" else (1, 0)
            parts.keep_part(self.mesh, own, axes[: len(first)], first)

        def summed(
            layer: keras.layers.EinsumDense, inputs: tf.Tensor, training: bool | None = None
        ) -> tf.Tensor:
            """The sum over heads is one over ranks; the bias is added once."""
            output = keras.ops.einsum(layer.equation, inputs, layer.kernel)
            output = self.mesh.functions.leave(output)
            return output if layer.bias is None else output + layer.bias

        self.output_dense.call = types.MethodType(summed, self.output_dense)

    def call(
        self,
        query: tf.Tensor,
        value: tf.Tensor,
        key: tf.Tensor | None = None,
        query_mask: tf.Tensor | None = None,
        value_mask: tf.Tensor | None = None,
        key_mask: tf.Tensor | None = None,
        attention_mask: tf.Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> tf.Tensor:
        """The output of the whole layer; see `keras.layers.MultiHeadAttention`.

        Raises:
            ValueError: with `return_attention_scores`, as a rank has the scores of some heads only.
        """
        self._check_step()
        if return_attention_scores:
            raise ValueError(
                "A rank has the attention scores of some of the heads only. Leave the argument "
                "out. Received: return_attention_scores=True"
            )
        entered: dict[int, tf.Tensor] = {}
        for tensor in (query, value, key):
            if tensor is not None and id(tensor) not in entered:
                entered[id(tensor)] = self.mesh.functions.enter(tensor)
                # Keras takes the mask of the query from the tensor, and takes all masks off.
                compat.set_mask(entered[id(tensor)], compat.mask_of(tensor))
                compat.set_mask(tensor, None)
        return super().call(
            entered[id(query)],
            entered[id(value)],
            None if key is None else entered[id(key)],
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            training=training,
            use_causal_mask=use_causal_mask,
        )
