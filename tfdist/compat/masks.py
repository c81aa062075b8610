"""The masks that Keras attaches to tensors, such as those of `Embedding(mask_zero=True)`."""

from __future__ import annotations

import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, touch

_MODULE = "keras.src.backend"
_WHY: dict[str, str] = {
    "why": "a loss leaves out what the mask of the model's output masks. An output that is joined "
    "from those of micro-batches needs their masks",
    "versions": KERAS,
    "instead": "a public function for the mask of a tensor",
}
_GET = touch(_MODULE, "get_keras_mask", READ, "x", **_WHY)
_SET = touch(_MODULE, "set_keras_mask", READ, "x", "mask", **_WHY)


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """The mask of `tensor`, a bool tensor; None if it has none."""
    return _GET.get()(tensor)


def set_mask(tensor: tf.Tensor, mask: tf.Tensor | None) -> None:
    """Gives `tensor` a mask; None for none."""
    _SET.get()(tensor, mask)
