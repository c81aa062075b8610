"""Single batches, weights that are read, and forked processes, while ranks die."""

import pickle

import numpy as np
import pytest

from tests.elastic.test_faults import ENGINES, launch


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_single_batches_and_loaded_weights_are_those_of_one_device(engine, tmp_path):
    job = ["tfdist", "run", "-n", "4", "--min", "1", "--strategy", engine, "--timeout", "200"]
    done = launch(tmp_path, *job, "-m", "tests.elastic.calls", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for what in ("rank 0 was killed", "rank 1 was killed", "rank 2 was asked to leave"):
        assert what in done.stderr
    assert (tmp_path / "child").read_text() == "15"
    found = pickle.loads((tmp_path / "calls-3.pickle").read_bytes())
    done = launch(tmp_path, "tests.elastic.calls", str(tmp_path))
    assert done.returncode == 0, done.stderr
    expected = pickle.loads((tmp_path / "calls--1.pickle").read_bytes())
    assert found["iterations"] == expected["iterations"]
    for ours, theirs in zip(found["weights"], expected["weights"]):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["predicted"], expected["predicted"], rtol=0, atol=1e-5)
    for ours, theirs in zip(found["logs"], expected["logs"]):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, abs=1e-5)
