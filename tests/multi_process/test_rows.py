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
