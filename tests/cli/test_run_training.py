"""One unchanged script trains the same model however it is started."""

import json

import numpy as np
import pytest

STEPS, RATE = 3, 0.1

SCRIPT = f"""
import keras
import numpy as np

import tfdist

strategy = tfdist.Strategy("auto")
x = np.arange(24, dtype="float32").reshape(8, 3) / 24
y = np.arange(8, dtype="float32").reshape(8, 1)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign(np.ones((3, 1)))
    model.compile(keras.optimizers.SGD({RATE}), loss="mse")
history = model.fit(x, y, batch_size=8, epochs={STEPS}, callbacks=strategy.callbacks())
note(f"trained-{{rank}}", json.dumps({{
    "strategy": type(strategy).__name__,
    "replicas": strategy.num_replicas_in_sync,
    "weights": model.get_weights()[0].ravel().tolist(),
    "losses": history.history["loss"],
}}))
"""


def expected():
    x = np.arange(24).reshape(8, 3) / 24
    y = np.arange(8).reshape(8, 1)
    weights, losses = np.ones((3, 1)), []
    for _ in range(STEPS):
        error = x @ weights - y
        losses.append(np.mean(error**2))
        weights = weights - RATE * 2 * x.T @ error / len(x)
    return weights.ravel(), losses


@pytest.mark.parametrize(
    ("options", "name", "replicas"),
    [
        (["--devices-per-worker", "2"], "MultiWorkerMirroredStrategy", 4),
        pytest.param(["--strategy", "horovod"], "HorovodStrategy", 2, marks=pytest.mark.full),
    ],
    ids=["multi_worker", "horovod"],
)
def test_two_processes_train_as_one(launcher, options, name, replicas):
    finished = launcher.run(SCRIPT, "--timeout", "120", *options, timeout=150)
    assert finished.returncode == 0, finished.stderr.decode()
    ranks = [json.loads(launcher.note(f"trained-{rank}")) for rank in range(2)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    weights, losses = expected()
    for result in ranks:
        assert (result["strategy"], result["replicas"]) == (name, replicas)
        np.testing.assert_allclose(result["weights"], weights, atol=1e-6)
        np.testing.assert_allclose(result["losses"], losses, rtol=1e-5)
