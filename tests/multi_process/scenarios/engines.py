"""What the engine of several processes gives each replica, beside what NumPy gives."""

import numpy as np
import tensorflow as tf

from tests.step.engines import DTYPES, given, of_replicas, results


def all_operations(here):
    """By dtype, each local replica's results of the engine's operations, and those expected."""
    strategy = here.strategy
    expected = {d: of_replicas(strategy.num_replicas_in_sync, d) for d in DTYPES}
    found = {}
    for dtype in DTYPES:
        function = tf.function(
            lambda dtype=dtype: strategy.run(results, args=(given, dtype)), autograph=False
        )
        parts = {
            name: [np.asarray(v) for v in strategy.experimental_local_results(value)]
            for name, value in function().items()
        }
        first = here.rank * here.devices
        found[dtype] = [
            {
                "found": {name: values[i] for name, values in parts.items()},
                "expected": expected[dtype][first + i],
            }
            for i in range(here.devices)
        ]
    return found
