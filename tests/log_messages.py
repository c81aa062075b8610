"""What is logged, where pytest's `caplog` does not reach."""

import contextlib
import logging

import tensorflow as tf


@contextlib.contextmanager
def log_messages():
    """In this context, messages that TensorFlow's logger gets are added to a list."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    tf.get_logger().addHandler(handler)
    try:
        yield messages
    finally:
        tf.get_logger().removeHandler(handler)
