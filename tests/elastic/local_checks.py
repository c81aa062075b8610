"""What local steps do in an elastic job in which nobody is lost; each rank checks it for itself.

python -m tfdist run -n 2 --min 2 -m tests.elastic.local_checks CHECK
"""

from __future__ import annotations

import gc
import sys
import weakref

ROWS, BATCH = 64, 8  # a round has three steps, the epoch eight


def main() -> None:
    """Runs one check."""
    import keras
    import numpy as np
    import pytest
    import tensorflow as tf

    import tfdist
    from tests import tuned_data

    strategy = tfdist.Strategy("auto", local=tfdist.DiLoCo(3))
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 4)).astype("float32")
    y = (x.sum(1, keepdims=True) > 0).astype("float32")
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}

    def made(rate=0.01, **compiled):
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"], **compiled)
        return model

    class Reset(keras.callbacks.Callback):
        """Resets metrics within a round."""

        decides_in_batches = False
        changes_variables = False

        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                self.model.reset_metrics()

    def numbers_of(history):
        return {name: history.history[name][-1] for name in ("loss", "mae")}

    def metrics_that_are_reset_within_a_round() -> None:
        model = made(rate=0.0)
        history = model.fit(x, y, callbacks=[Reset()], **options)
        error = (model.predict(x, verbose=0) - y)[5 * BATCH :]
        expected = {"loss": np.square(error).mean(), "mae": np.abs(error).mean()}
        assert numbers_of(history) == pytest.approx(expected)

    def metrics_with_a_nan_in_one_rank() -> None:
        class Both(keras.metrics.Metric):
            """Counts steps, and adds up something that no number is in one of the ranks."""

            def __init__(self):
                super().__init__(name="both")
                self.both = self.add_variable((2,), initializer="zeros", name="both")

            def update_state(self, y_true, y_pred, sample_weight=None):
                sizes = tf.cast(tf.shape(y_true)[0], tf.float32)
                first = tf.reduce_any(y_true > 5.0)
                self.both.assign_add([sizes, tf.where(first, np.nan, 1.0)])

            def result(self):
                return self.both[0]

        marked = y.copy()
        marked[0] = 10.0  # the first rank has this sample
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.0), "mse", metrics=[Both()])
        history = model.fit(x, marked, **options)
        assert history.history["both"] == [ROWS]

    def frozen_models() -> None:
        model = made()
        model.layers[0].trainable = False
        model.compile("sgd", "mse")
        model.fit(x, y, **options)

    def models_that_are_freed() -> None:
        known = []
        for _ in range(4):
            model = made()
            model.fit(x, y, **options)
            known.append(weakref.ref(model.optimizer))
            del model
            keras.backend.clear_session()
            gc.collect()
            strategy.processes.all_gather([0])  # the group keeps what it did last
        gc.collect()
        alive = sum(reference() is not None for reference in known)
        assert alive <= 1, "the group knows the callbacks of the last training"

    def steps_that_are_not_traced() -> None:
        model = made(rate=0.0)
        history = model.fit(x, y, **options)
        model.run_eagerly = True
        found = model.evaluate(x, y, batch_size=BATCH, return_dict=True, verbose=0)
        assert found == pytest.approx(numbers_of(history))
        with pytest.raises(ValueError, match="traces the step of the others without running it"):
            model.fit(x, y, **options)

    def data_that_are_not_tuned() -> None:
        with tuned_data.recorded() as found:
            made().fit(x, y, **options)
        assert set(found) == {False}

    def metrics_that_are_no_sums() -> None:
        class Largest(keras.metrics.Metric):
            def __init__(self, aggregation):
                super().__init__(name="largest")
                self.most = self.add_variable((), "zeros", aggregation=aggregation, name="most")

            def update_state(self, y_true, y_pred, sample_weight=None):
                self.most.assign(keras.ops.maximum(self.most, keras.ops.max(y_pred)))

            def result(self):
                return self.most

        for of, aggregation in (
            (strategy, "mean"),
            (strategy, "only_first_replica"),
            (tfdist.Strategy("auto"), "mean"),
        ):
            with of.scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("adam", "mse", metrics=[Largest(aggregation)])
            received = f"added up.* Received: .*most with aggregation='{aggregation}'"
            with pytest.raises(ValueError, match=received):
                model.fit(x, y, **options)
            assert model.optimizer.iterations == 0, "before the first step"

    checks = [
        metrics_that_are_reset_within_a_round,
        metrics_with_a_nan_in_one_rank,
        frozen_models,
        models_that_are_freed,
        steps_that_are_not_traced,
        data_that_are_not_tuned,
        metrics_that_are_no_sums,
    ]
    {check.__name__: check for check in checks}[sys.argv[1]]()
    print(f"passed: {sys.argv[1]}", flush=True)


if __name__ == "__main__":
    main()
