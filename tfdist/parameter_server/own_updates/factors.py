"""What staleness policies decide, as a table that a parameter server can look up."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.staleness import Policies

SIZE = 65536


class Factors:
    """The factors of learning rates by staleness.

    Args:
        policies: policies that drop no gradient.
        device: the parameter server that looks factors up.

    Attributes:
        variables: what is kept on the parameter server.
    """

    def __init__(self, policies: Policies, device: str):
        factors = [policies.learning_rate_factor(staleness) for staleness in range(SIZE)]
        self._is_constant = len(set(factors)) == 1
        self._first = factors[0]
        with tf.device(device):
            table = np.asarray(factors, np.float32)
            self._table = None if self._is_constant else tf.Variable(table, trainable=False)
        self.variables = [] if self._table is None else [self._table]

    def of(self, staleness: tf.Tensor) -> tf.Tensor:
        """The factor; an operation fails where the staleness is beyond the table."""
        if self._table is None:
            return tf.constant(self._first)
        return tf.gather(self._table, staleness)
