"""How Horovod's errors tell that another rank is gone."""

from __future__ import annotations

import tensorflow as tf


def is_loss(error: Exception) -> bool:
    """Whether Horovod, or Gloo below it, failed in an operation; they do not say more."""
    if not isinstance(error, (tf.errors.UnknownError, tf.errors.AbortedError)):
        return False
    return any(name in error.message.lower() for name in ("horovod", "gloo"))
