"""Sparse gradients between processes, as rows and as tables."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import rows
from tfdist.step.tables import Tables


@scenario(rows.sums, (*ALL, "horovod-2x2"))
def test_sums_of_rows_are_numpys(found):
    for tables, rank in ((tables, rank[tables.name]) for rank in found for tables in Tables):
        for name, of_counts in rank.items():
            counts = rows.COUNTS[name][: _replicas(found)]
            # A row has 12 bytes, and its number 8. A row of a table has 12 or 28.
            size = 12 if tables is Tables.SUMS else 28
            is_table = tables is not Tables.NONE and 20 * sum(counts) > 2 * size * rows.ROWS
            assert is_table == (tables is not Tables.NONE and name == "many")
            for sums, numbers in zip(of_counts["found"], of_counts["numbers"], strict=True):
                for kind, expected in of_counts["expected"].items():
                    if not is_table:
                        np.testing.assert_array_equal(sums[kind], expected)
                    elif kind in ("SUMS", tables.name):
                        np.testing.assert_allclose(sums[kind], expected, rtol=1e-6, atol=1e-5)
                _check_numbers(tables if is_table else Tables.NONE, numbers, of_counts, counts)


def _check_numbers(tables, numbers, of_counts, counts):
    """How often each row has come."""
    given = of_counts["given"]
    if tables is Tables.NONE:
        # A replica without rows may send one of zeros.
        most = sum(max(1, count) for count in counts)
        assert sum(given) == sum(counts) <= sum(numbers) <= most
    elif tables is Tables.SUMS:
        assert numbers == [1] * rows.ROWS
    else:
        for number, count in zip(numbers, given, strict=True):
            assert number % 2 == 0 and bool(count) == bool(number) and number <= count + 1


@scenario(rows.coded, (*ALL, "horovod-2x2"))
def test_sums_of_rounded_rows_are_numpys(found):
    replicas = len(found) * len(next(iter(found[0].values())))
    for rank in found:
        for (name, number, counts, summed), of_replicas in rank.items():
            given = [rows.fractions(r, rows.COUNTS[counts][r]) for r in range(replicas)]
            rounds = {"always": True, "late": number >= rows.START}
            for sums in of_replicas:
                for factor, (path, total) in enumerate(zip(rows.PATHS, sums, strict=True), 1):
                    own = [(factor * values, numbers) for values, numbers in given]
                    coder = name if rounds.get(path) else None
                    expected = _sum_of_rounded(coder, own, summed)
                    np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-6)
                    first = found[0][name, number, counts, summed][0][factor - 1]
                    np.testing.assert_array_equal(total, first)


def _sum_of_rounded(name, given, may_be_table):
    """NumPy's sum of rows, of which none is rounded where the table travels."""
    size = 4 if name is None else 2
    row_bytes, table_bytes = size * rows.WIDTH + 8, 4 * rows.WIDTH * rows.ROWS
    is_table = row_bytes * sum(len(values) for values, _ in given) > 2 * table_bytes
    rounds = name is not None and not (may_be_table and is_table)
    total = np.zeros((rows.ROWS, rows.WIDTH), "float32")
    for values, numbers in given:
        np.add.at(total, numbers, _rounded(name, values) if rounds else values)
    return total


def _rounded(name, values):
    limit = 0.999 * 65504 if name == "fp16" else np.inf
    dtype = tf.as_dtype(rows.CODERS[name]).as_numpy_dtype
    return np.clip(values, -limit, limit).astype(dtype).astype("float32")


@pytest.mark.parametrize("name", ["rows", pytest.param("table", marks=pytest.mark.full)])
@scenario(rows.trained_coded, ("multi_worker-2", "horovod-2"))
def test_coded_rows_train_as_on_devices_of_one_process(found, name):
    def make(**options):
        return tfdist.MirroredStrategy(DEVICES[:2], **options)

    expected = rows.coded_weights(make, name)
    whole = rows.embeddings(make(), rows.CODED[name][1])
    whole.fit(*rows.data(), batch_size=20, epochs=2, shuffle=False, verbose=0)
    pairs = zip(expected, whole.get_weights(), strict=True)
    assert any(abs(np.float32(a) - b).max() > 1e-5 for a, b in pairs)
    for rank in found:
        assert rank[name] == found[0][name]
        for ours, theirs in zip(rank[name], expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def _replicas(found):
    return len(found) * len(found[0]["SUMS"]["few"]["found"])


@scenario(rows.trained, (*ALL, "horovod-2x2"))
def test_embeddings_train_as_on_one_device(found):
    for name in rows.OPTIMIZERS:
        model = rows.embeddings(tf.distribute.get_strategy(), name)
        model.fit(*rows.data(), batch_size=20, epochs=2, shuffle=False, verbose=0)
        for rank in found:
            assert rank[name] == found[0][name]
            for ours, theirs in zip(rank[name], model.get_weights(), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6)
