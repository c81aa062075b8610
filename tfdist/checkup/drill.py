"""A drill: a rank of an elastic job is killed and replaced, and the weights stay the same.

`run` starts the job, and `python -m tfdist.checkup.drill FOLDER` is one of its ranks.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time

import keras

from tfdist.checkup.equality import difference, train
from tfdist.checkup.features import ALL, EXACT
from tfdist.checkup.report import Drill
from tfdist.elastic import membership
from tfdist.strategies.factory import Strategy

RANKS = 2
_FEATURE = ALL[0]
_KILLED, _IN_STEP = 1, 4  # of 6
_DEADLINE = 150  # seconds


def run(strategy: str) -> Drill:
    """Starts the job on this machine, and compares what its ranks have in the end.

    Args:
        strategy: "multi_worker" or "horovod".
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tfdist-drill-") as folder:
        options = ["-n", str(RANKS), "--min", str(RANKS), "--restarts", "1", "--spares", "1"]
        options += ["--strategy", strategy, "--timeout", str(_DEADLINE)]
        command = [sys.executable, "-m", "tfdist", "run", *options, "-m", __name__, folder]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        weights = [pickle.loads(path.read_bytes()) for path in pathlib.Path(folder).glob("rank-*")]
        was_killed = pathlib.Path(folder, "killed").exists()
    seconds = time.monotonic() - begun
    if done.returncode or len(weights) != RANKS or not was_killed:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        status = f"it ended with status {done.returncode}, {len(weights)} rank(s) with weights"
        return Drill(seconds, None, EXACT, " ".join([status, *last]))
    expected = train(_FEATURE, RANKS)
    return Drill(seconds, max(difference(own, expected) for own in weights), EXACT)


class _Death(keras.callbacks.Callback):
    """Kills this process in the middle of training, as the kernel does when memory runs out."""

    decides_in_batches = False

    def __init__(self, folder: pathlib.Path):
        super().__init__()
        self._folder = folder
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts the steps."""
        self._steps += 1
        if self._steps == _IN_STEP:
            (self._folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Trains as one rank, and writes its weights."""
    folder, number = pathlib.Path(sys.argv[1]), membership.number()
    strategy = Strategy("auto")
    callbacks = [_Death(folder)] if number == _KILLED else []
    weights = train(_FEATURE, RANKS, strategy, callbacks)
    (folder / f"rank-{number}").write_bytes(pickle.dumps(weights))


if __name__ == "__main__":
    main()
