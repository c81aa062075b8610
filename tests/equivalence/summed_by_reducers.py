"""What `test_reducers_by_launchers.py` starts: gradients that are long enough for reducers."""

import pathlib
import sys

import numpy as np

import tfdist
from tests.multi_process.scenarios import reducers
from tfdist.strategies.multi_worker.reducers.exchanges import exchanges_of

strategy = tfdist.Strategy("auto")
with strategy.scope():
    model = reducers.model_of()
reducers.fit(model)
np.savez(
    pathlib.Path(sys.argv[1]) / f"{strategy.processes.rank}.npz",
    *model.get_weights(),
    exchanges=exchanges_of(strategy.processes.rank, int(sys.argv[2])).number,
)
