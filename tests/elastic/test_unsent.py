"""What compression has left unsent in ranks that leave, die, join, or repeat steps."""

import pickle

import numpy as np
import pytest

from tests.elastic import unsent
from tests.elastic.test_faults import DEADLINE, NEEDS, launch

# The ranks and what happens to them, those of the end, and those whose part is lost.
JOBS = {
    "connections break": (2, ["interrupt@3"], [0, 1], []),
    "leaves": (3, ["1:SIGTERM:step 12"], [0, 2], []),
    "leaves while connections break": (3, ["1:SIGTERM:step 13", "interrupt@5"], [0, 2], []),
    "two leave at once": (3, ["0:SIGTERM:step 12", "2:SIGTERM:step 12"], [1], []),
    "one after the other": (3, ["2:SIGTERM:micro 9", "1:SIGTERM:micro 10"], [0], []),
    "leaves at an epoch's end": (3, ["0:SIGTERM:epoch 2"], [1, 2], []),
    "dies": (3, ["1:SIGKILL:micro 12"], [0, 2], [1]),
    "dies, one leaves": (3, ["0:SIGKILL:micro 12", "1:SIGTERM:micro 12"], [2], [0]),
    "leaves after training": (3, ["0:SIGTERM:evaluate"], [1, 2], []),
    "dies after training": (3, ["0:SIGKILL:evaluate"], [1, 2], [0]),
    "is replaced, one leaves": (3, ["1:SIGKILL:micro 12", "2:SIGTERM:step 30"], [0, 3], [1]),
}
COMPRESSORS = ("topk", "powersgd", "sign")
USUAL = {
    ("horovod", "powersgd", "dies, one leaves"),
}


def cells():
    for engine, needs in NEEDS.items():
        for place, name in enumerate(JOBS):
            for compressor in COMPRESSORS:
                usual = (engine, compressor, name) in USUAL
                if not usual and compressor != COMPRESSORS[place % 3]:
                    continue
                marks = needs if usual else (*needs, pytest.mark.full)
                yield pytest.param(
                    engine, compressor, name, marks=marks, id=f"{engine}-{compressor}-{name}"
                )


@pytest.mark.parametrize(("engine", "compressor", "name"), list(cells()))
@pytest.mark.parametrize("accumulated", [1, pytest.param(2, marks=pytest.mark.full)])
def test_all_gradients_are_sent_or_left(
    tmp_path, monkeypatch, engine, compressor, name, accumulated
):
    monkeypatch.setattr(unsent, "ACCUMULATED", accumulated)
    count, faults, members, lost = JOBS[name]
    least, restarts = (2, 2) if "replaced" in name or members == [0, 1] else (1, 0)
    command = ["tfdist", "run", "-n", str(count), "--min", str(least), "--strategy", engine]
    command += ["--restarts", str(restarts), "--timeout", str(DEADLINE)]
    command += ["-m", "tests.elastic.unsent", str(tmp_path), compressor, *faults]
    done = launch(tmp_path, *command, ACCUMULATED=str(accumulated))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    ranks = [pickle.loads((tmp_path / f"rank-{n}.pickle").read_bytes()) for n in members]
    (weights,) = ranks[0]["weights"]
    for rank in ranks:
        assert rank["members"] == members
        assert (rank["weights"][0] == weights).all()
        # The logs of `fit` end with training.
        lost_in_fit = 0 if "evaluate" in faults[-1] else len(lost)
        assert rank["history"]["lost_residuals"][-1] == lost_in_fit
    kept = {n: pickle.loads((tmp_path / f"unsent-{n}").read_bytes()) for n in [*members, *lost]}
    assert all(np.abs(part).sum() > 0.1 for n in lost for part in kept[n]), "nothing was at stake"
    left = sum(part.reshape(weights.shape) for parts in kept.values() for part in parts)
    expected = unsent.gradients().sum(axis=0)
    np.testing.assert_allclose(left - weights / unsent.RATE, expected, rtol=0, atol=1e-6)
    saved = unsent.saved(tmp_path / "model.keras")
    own = sum(part.ravel() for n in members for part in kept[n])
    np.testing.assert_allclose(saved, own, rtol=0, atol=1e-6)
    assert done.stderr.count("left unsent in 1 rank(s) is lost.") == bool(lost)
    assert "interrupt@" not in faults[-1] or any(rank["faults"] for rank in ranks)
