"""Whether gradients are finite, and whose are not."""

from __future__ import annotations

import tensorflow as tf

from tfdist.parameter_server.gradients import Gradients
from tfdist.parameter_server.packing import unpack_there
from tfdist.parameter_server.worker.functional_step import FunctionalStep


def finite_by_path(gradients: Gradients, step: FunctionalStep) -> dict[str, tf.Tensor]:
    """Whether the gradients are finite: by the path of the variable, a bool scalar.

    Args:
        gradients: as in `Outcome`.
        step: tells which variable has which number, and on which device it is.
    """
    found: dict[str, tf.Tensor] = {}
    for key, by_variable in gradients.items():
        variables = step.parts_for(key)
        for place, gradient in unpack_there(by_variable, variables).items():
            variable = variables[int(place)]
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            with tf.device(variable.value.device):
                finite = tf.reduce_all(tf.math.is_finite(values))
            before = found.get(variable.path)
            found[variable.path] = finite if before is None else tf.logical_and(before, finite)
    return found
