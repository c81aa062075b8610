"""The chief of a cluster whose servers are in this process; it runs scenarios, one after the other.

python -m tests.parameter_server.worker DESCRIPTION RANK; see `tests/equivalence/job.py`.
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

WORKERS, PARAMETER_SERVERS = 2, 2


def main() -> None:
    """Runs the scenarios of the description in their order, until one fails."""
    path, rank = pathlib.Path(sys.argv[1]), sys.argv[2]
    description = json.loads(path.read_text())
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    warnings.filterwarnings("error", module=r"tfdist(\.|$)")

    import tfdist
    from tests.equivalence import harness, results
    from tests.parameter_server import scenarios

    harness.keep_imports_out_of_collections()
    with tfdist.cluster.local_cluster(WORKERS, PARAMETER_SERVERS) as resolver:
        for name in description["features"]:
            folder = path.parent / name
            folder.mkdir()
            try:
                content = getattr(scenarios, name)(resolver, folder)
            except BaseException:
                error = traceback.format_exc().encode()
                results.write(path.with_name(results.file_name(name, rank, "error")), error)
                raise
            results.write(path.with_name(results.file_name(name, rank)), pickle.dumps(content))
            harness.forget()
    os._exit(0)  # TensorFlow's servers cannot be stopped


def _end_with_the_tests() -> None:
    """The standard input ends when the process that started this one is gone."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
