"""What elastic jobs add to the logs, beside metrics of the user's own."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, pathlib, sys
import keras, numpy as np, tfdist

strategy = tfdist.Strategy("multi_worker")
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name="replicas")])
x = np.ones((8, 2), "float32")
history = model.fit(x, x[:, :1] + 7, batch_size=8, epochs=2, verbose=0).history
rank = os.environ["TFDIST_ELASTIC"].split(":")[1]
pathlib.Path(sys.argv[1], rank).write_text(json.dumps(history))
"""


@pytest.mark.full
def test_a_metric_that_is_called_like_a_count_keeps_its_values(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--min", "1", "--timeout", "120"]
    subprocess.run([*command, str(script), str(tmp_path)], check=True)
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert found[0]["recoveries"] == [0, 0]
    first, second = found[0]["replicas"]
    assert 5 < second < first < 10
