"""Balance in a group that changes: shares follow the speeds of those who are there."""

import pickle

import numpy as np
import pytest

from tests.elastic import uneven, unsent
from tests.elastic.test_faults import DEADLINE, ENGINES, launch


def train(folder, engine, *options, faults):
    command = ["tfdist", "run", "-n", "3", "--min", "2", "--strategy", engine, *options]
    command += ["--timeout", str(DEADLINE), "-m", "tests.elastic.uneven", str(folder), *faults]
    done = launch(folder, *command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def check(folder, members):
    """All ranks have the weights of one device. Returns their shares after each step."""
    ranks = [pickle.loads((folder / f"rank-{n}.pickle").read_bytes()) for n in members]
    (weights,) = ranks[0]["weights"]
    for rank in ranks:
        assert rank["members"] == members
        assert (rank["weights"][0] == weights).all()
    expected = -unsent.RATE * unsent.gradients(uneven.EPOCHS).sum(axis=0)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)
    return [rank["shares"] for rank in ranks]


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_shares_are_even_again_and_then_follow(tmp_path, engine):
    shown = train(tmp_path, engine, faults=["0:SIGKILL:micro 32"])
    shares = check(tmp_path, [1, 2])
    for of_rank in shares:
        assert min(three[2] for three in of_rank[:32]) < 0.28
        assert [0.5, 0.5] in of_rank[32:36]
        assert min(two[1] for two in of_rank[32:]) < 0.4
    assert "Shares of a batch" in shown, "the first rank that is left reports"


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_joins_gets_its_part(tmp_path, engine):
    train(tmp_path, engine, "--restarts", "2", faults=["0:SIGKILL:micro 12", "2:SIGTERM:step 24"])
    shares = check(tmp_path, [1, 3])
    for of_rank in shares:
        assert [1 / 3] * 3 in of_rank
