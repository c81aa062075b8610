"""Sparse gradients between processes, as rows and as tables."""

import numpy as np
import tensorflow as tf

from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import rows


@scenario(rows.sums, (*ALL, "horovod-2x2"))
def test_sums_of_rows_are_numpys(found):
    for rank in found:
        for name, of_counts in rank.items():
            counts = rows.COUNTS[name][: _replicas(found)]
            # A row has 12 bytes, and its number 8.
            is_table = 20 * sum(counts) > 2 * 12 * rows.ROWS
            # A replica without rows may send one of zeros.
            most = sum(max(1, count) for count in counts)
            for sums, number in zip(of_counts["found"], of_counts["rows"], strict=True):
                np.testing.assert_array_equal(sums, of_counts["expected"])
                assert number == rows.ROWS if is_table else sum(counts) <= number <= most


@scenario(rows.coded, (*ALL, "horovod-2x2"))
def test_sums_of_rounded_rows_are_numpys(found):
    replicas = len(found) * len(next(iter(found[0].values())))
    for rank in found:
        for (name, number, counts), sums in rank.items():
            given = [rows.fractions(r, rows.COUNTS[counts][r]) for r in range(replicas)]
            expected = _sum_of_rounded(name, given) if number == rows.START else _sum(given)
            for total in sums:
                np.testing.assert_array_equal(total, found[0][name, number, counts][0])
                np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-6)


def _sum(given):
    total = np.zeros((rows.ROWS, rows.WIDTH), "float32")
    for values, numbers in given:
        np.add.at(total, numbers, values)
    return total


def _sum_of_rounded(name, given):
    dtype = tf.as_dtype(rows.CODERS[name]).as_numpy_dtype
    limit = 0.999 * 65504 / len(given) if name == "fp16" else np.inf

    def rounded(values):
        return np.clip(values, -limit, limit).astype(dtype).astype("float32")

    # A row takes 2 bytes for each number, and 8 for its place; a table is summed in half precision,
    # and not rounded with bfloat16.
    table_bytes = (2 if name == "fp16" else 4) * rows.WIDTH * rows.ROWS
    if (2 * rows.WIDTH + 8) * sum(len(values) for values, _ in given) <= 2 * table_bytes:
        return _sum([(rounded(values), numbers) for values, numbers in given])
    tables = [_sum([one]) for one in given]
    if name == "bf16":
        return sum(tables)
    return sum(map(rounded, tables)).astype(dtype).astype("float32")


def _replicas(found):
    return len(found) * len(found[0]["few"]["found"])


@scenario(rows.trained, (*ALL, "horovod-2x2"))
def test_embeddings_train_as_on_one_device(found):
    for name in rows.OPTIMIZERS:
        model = rows.embeddings(tf.distribute.get_strategy(), name)
        model.fit(*rows.data(), batch_size=20, epochs=2, shuffle=False, verbose=0)
        for rank in found:
            assert rank[name] == found[0][name]
            for ours, theirs in zip(rank[name], model.get_weights(), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6)
