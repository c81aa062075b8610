"""Metrics that every rank has whole: after each step they count the samples of all ranks.

Elsewhere a rank's metrics count its own samples, and the ranks add them up where they are read. If
a rank is lost, its part of the epoch would be lost too.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.step import exchange
from tfdist.step.logs import with_results
from tfdist.structures import Structure

_NO_SUMS = ("mean", "only_first_replica")


def counted_everywhere(
    fn: Callable, model: keras.Model, name: str, is_summed: Callable[[tf.Variable], bool]
) -> Callable:
    """Returns the step `fn` of a replica, completed so that metrics count all replicas' samples.

    Args:
        fn: a train step or a test step of `model`.
        model: the model.
        name: the name of the step.
        is_summed: whether a variable counts a replica's own samples.

    Raises:
        ValueError: when the step is traced; see `own`.
    """

    def step(*args: Structure, **kwargs: Structure) -> Structure:
        before = {id(v): v.read_value() for v in own(model, is_summed)}
        logs = fn(*args, **kwargs)
        variables = [v for v in own(model, is_summed) if v.dtype.is_floating or v.dtype.is_integer]
        _sum([before.get(id(v), tf.zeros_like(v)) for v in variables], variables)
        if not isinstance(logs, dict):
            return logs
        return with_results(logs, model.get_metrics_result(), model, name)

    return step


def own(model: keras.Model, is_summed: Callable[[tf.Variable], bool]) -> list[tf.Variable]:
    """The variables of the model's metrics that are summed, in one order in all ranks.

    Args:
        model: the model.
        is_summed: as for `counted_everywhere`.

    Raises:
        ValueError: for a variable of which the ranks' values are not to be added up.
    """
    of_metrics = [v for metric in model.metrics for v in metric.variables if is_summed(v.value)]
    for variable in of_metrics:
        if variable.aggregation in _NO_SUMS:
            raise ValueError(
                "In an elastic job (`tfdist run --min`) what each rank counts in a metric is added "
                "up, so that it is not lost with a rank. Let the metric count something that can "
                'be added up, in variables with `aggregation="sum"`, or start the job without '
                f"--min. Received: {variable.path} with aggregation={variable.aggregation!r}"
            )
    return [variable.value for variable in of_metrics]


def _sum(before: list[tf.Tensor], variables: list[tf.Variable]) -> None:
    """Adds to each variable what the other replicas have added in this step."""
    added = [tf.convert_to_tensor(v) - b for v, b in zip(variables, before)]
    kinds = list(dict.fromkeys(value.dtype for value in added))
    for kind in kinds:
        places = [place for place, value in enumerate(added) if value.dtype == kind]
        flat = tf.concat([tf.reshape(added[place], [-1]) for place in places], axis=0)
        (sums,) = exchange.all_reduce([flat])
        sizes = [tf.size(added[place]) for place in places]
        for place, part in zip(places, tf.split(sums, sizes, num=len(places))):
            total = tf.reshape(part, tf.shape(added[place]))
            variables[place].assign(before[place] + total)
