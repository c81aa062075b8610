"""A rank of an elastic job: trains features under faults, and writes their results.

python -m tfdist run -n 3 --min 2 -m tests.elastic.worker FOLDER STRATEGY FAULTS FEATURE...

STRATEGY may end with "+topk", for compression that loses nothing, with "+balance", for shares of
global batches that move after every step, or with "+reducers", which then sum whatever they can.
FAULTS is as for `faulty.install`. A rank that is started later writes no results of features that
had ended when it joined the others.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pathlib
import pickle
import signal
import sys
import warnings

_OF_GROUP = ("replicas", "recoveries", "lost_residuals")


def main() -> None:
    """Trains the features in their order."""
    folder, name_of_strategy, faults, *names = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1)
    warnings.filterwarnings("error", module=r"tfdist(\.|$)")
    warnings.filterwarnings("ignore", message=".*more traffic")

    import keras

    import tfdist
    from tests.elastic import faulty
    from tests.equivalence import harness, moving_shares
    from tests.equivalence.features import FEATURES
    from tests.equivalence.results import Result, file_name, write
    from tfdist.strategies.multi_worker.reducers import engine

    name_of_strategy, _, kind = name_of_strategy.partition("+")
    chosen = {
        "": {},
        "topk": {"compression": tfdist.compression.TopK(1.0, min_bytes=0)},
        "balance": {"balance": True},
        "reducers": {},
    }[kind]
    if kind == "reducers":
        engine.LEAST_FOR_REDUCERS = 0
    features = {feature.name: feature for feature in FEATURES}
    number = int(os.environ["TFDIST_ELASTIC"].split(":")[1])
    faulty.install(faults, number)
    for feature in [features[name] for name in names]:
        print(f"{feature.name} ...", flush=True)
        path = pathlib.Path(folder, file_name(feature.name, str(number)))
        strategy = None
        try:
            with moving_shares.moving(kind == "balance"):
                strategy = tfdist.Strategy(name_of_strategy, **{**chosen, **feature.options})
                outcome, model = harness.train(feature, strategy)
            for name in [n for n in outcome.history if n.endswith(_OF_GROUP)]:
                del outcome.history[name]
            result = Result.of(outcome, model)
        except ValueError as error:
            outcome = model = None
            result = Result(harness.Outcome([], {}), [], refused=str(error))
        if strategy is None or not strategy.group.is_apart:
            write(path, pickle.dumps(result))
        del outcome, model, strategy
        keras.backend.clear_session()
        gc.collect()  # steps keep the values of all variables that there are
        keras.config.set_dtype_policy("float32")
    print(f"faults: {faulty.happened}", flush=True)


if __name__ == "__main__":
    main()
