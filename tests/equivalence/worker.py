"""A rank of a job: trains features and writes their results; see `job.py`.

python -m tests.equivalence.worker DESCRIPTION RANK
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import pickle
import signal
import sys
import threading
import traceback
import warnings


def main() -> None:
    """Trains the features of the description in their order, until one fails."""
    path, rank = pathlib.Path(sys.argv[1]), sys.argv[2]
    description = json.loads(path.read_text())
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    warnings.filterwarnings("error", module=r"tfdist(\.|$)")
    warnings.filterwarnings("ignore", message=".*more traffic")

    from tests.equivalence import columns, harness, peers, results
    from tests.equivalence.features import FEATURES

    column = {**columns.BY_NAME, **peers.BY_NAME}[description["column"]]
    features = {feature.name: feature for feature in FEATURES}
    harness.keep_imports_out_of_collections()
    for name in description["features"]:
        try:
            content = pickle.dumps(column.train(features[name]))
        except BaseException:
            error = traceback.format_exc().encode()
            results.write(path.with_name(results.file_name(name, rank, "error")), error)
            raise
        results.write(path.with_name(results.file_name(name, rank)), content)


def _end_with_the_tests() -> None:
    """The standard input ends when the process that started this one is gone."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
