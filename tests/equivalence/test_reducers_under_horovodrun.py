"""`horovodrun` with TFDIST_REDUCERS: its last ranks only sum."""

import pathlib

import numpy as np
import pytest

from tests.equivalence.test_launchers import COMMANDS, environment, run
from tests.multi_process.scenarios import reducers
from tfdist.strategies.horovod.backend import is_installed

SCRIPT = str(pathlib.Path(__file__).with_name("summed_by_reducers.py"))


@pytest.mark.skipif(not is_installed(), reason="needs Horovod")
def test_workers_train_what_one_device_trains(tmp_path):
    program, *options = COMMANDS["horovodrun"]
    options[options.index("-np") + 1] = "4"
    command = (program, *options, SCRIPT, str(tmp_path), "2")
    run([command], [environment(TFDIST_REDUCERS="2")])
    found = [dict(np.load(file)) for file in sorted(tmp_path.glob("*.npz"))]
    assert [rank.pop("exchanges") >= 2 for rank in found] == [True, True]
    model = reducers.model_of()
    reducers.fit(model)
    for rank in found:
        for place, expected in enumerate(model.get_weights()):
            name = f"arr_{place}"
            np.testing.assert_array_equal(rank[name], found[0][name])
            np.testing.assert_allclose(rank[name], expected, rtol=0, atol=1e-6)
