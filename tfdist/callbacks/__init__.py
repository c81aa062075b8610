"""Keras callbacks for distributed training."""

from tfdist.callbacks.terminate_on_nan import TerminateOnNaN

__all__ = ["TerminateOnNaN"]
