"""An error of a worker names that worker, also where Python's tracebacks show no notes."""

import logging
import sys

import tensorflow as tf

from tfdist.parameter_server.chief.errors import explained

ADDRESSES = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
NOTE = "This happened on worker 1 (b:1)."


def test_the_note_is_added_and_logged_where_nobody_would_see_it(caplog):
    error = tf.errors.InvalidArgumentError(None, None, "a bad sample")
    error.worker = 1
    with caplog.at_level(logging.ERROR, logger="tensorflow"):
        tf.get_logger().addHandler(caplog.handler)
        try:
            assert explained(error, ADDRESSES, 60.0) is error
        finally:
            tf.get_logger().removeHandler(caplog.handler)
    assert error.__notes__ == [NOTE]
    logged = f"tfdist: {NOTE}" in caplog.messages
    assert logged == (sys.version_info < (3, 11))
    if hasattr(error, "add_note"):
        error.add_note("another")
        assert error.__notes__ == [NOTE, "another"]
