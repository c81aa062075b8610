"""Each operation of an engine, with what NumPy computes of the same numbers."""

import numpy as np
import tensorflow as tf

from tfdist.engines.current import current, own_number

DTYPES = ("float16", "float32", "float64", "int32", "int64")
PART = 3


def given(replica, replicas, dtype):
    """What a replica hands in: small whole numbers, which every dtype adds exactly."""
    generator = np.random.default_rng(replica)
    return {
        "vector": generator.integers(-9, 9, PART * replicas).astype(dtype),
        "rows": generator.integers(-9, 9, (replicas, 2, 2)).astype(dtype),
        "uneven": generator.integers(-9, 9, (replica + 1, 2)).astype(dtype),
        "odd": (generator.integers(-9, 9, 5) / np.array(3)).astype(dtype),
    }


def results(make, dtype):
    """What this replica gets of each operation; in replica context."""
    engine, number = current(), int(tf.get_static_value(own_number()))
    own = {name: tf.constant(value) for name, value in make(number, engine.replicas, dtype).items()}
    last = engine.replicas - 1
    sums = engine.all_reduce([own["vector"], own["odd"]])
    indices = tf.constant([number, 0], tf.int64)
    rows = tf.IndexedSlices(own["rows"][0], indices, tf.constant([9, 2], tf.int64))
    (sparse,) = engine.all_reduce([rows])
    return {
        "all_reduce": sums[0],
        "all_reduce of several": sums[1],
        "all_reduce of rows": sparse.values,
        "all_reduce of indices": sparse.indices,
        "all_gather": engine.all_gather(own["uneven"]),
        "broadcast": engine.broadcast(own["odd"]),
        "broadcast of the last": engine.broadcast(own["odd"], root=last),
        "all_to_all": engine.all_to_all(own["rows"]),
        "reduce_scatter": engine.reduce_scatter(own["vector"]),
    }


def of_replicas(replicas, dtype):
    """What each replica should get."""
    own = [given(replica, replicas, dtype) for replica in range(replicas)]
    total = np.sum([part["vector"] for part in own], axis=0).astype(dtype)
    several = np.sum([part["odd"] for part in own], axis=0).astype(dtype)
    return [
        {
            "all_reduce": total,
            "all_reduce of several": several,
            "all_reduce of rows": np.concatenate([part["rows"][0] for part in own]),
            "all_reduce of indices": np.array([[r, 0] for r in range(replicas)]).reshape(-1),
            "all_gather": np.concatenate([part["uneven"] for part in own]),
            "broadcast": own[0]["odd"],
            "broadcast of the last": own[-1]["odd"],
            "all_to_all": np.stack([part["rows"][replica] for part in own]),
            "reduce_scatter": total[PART * replica : PART * (replica + 1)],
        }
        for replica in range(replicas)
    ]


def assert_equal(found, expected):
    """Asserts equality: to the bit, but for sums of numbers that are rounded."""
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        if name == "all_reduce of several":
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
