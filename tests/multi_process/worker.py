"""A rank: runs scenarios, one after the other, and writes what it found out in each.

python -m tests.multi_process.worker DESCRIPTION RANK; see `tests/equivalence/job.py`.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
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
    """Runs the scenarios of the description in their order, until one fails."""
    path, rank = pathlib.Path(sys.argv[1]), sys.argv[2]
    description = json.loads(path.read_text())
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run behind `&`
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    warnings.filterwarnings("error", module=r"tfdist(\.|$)")

    from tests.equivalence import results
    from tests.multi_process.jobs import JOBS
    from tests.multi_process.scenarios import common

    here = common.Here(JOBS[description["column"]], path.parent)
    gc.collect()
    gc.freeze()  # Keras collects often, which takes 0.2 s with all modules
    for name in description["features"]:
        try:
            content = here.run(name, _function(name))
        except BaseException:
            error = traceback.format_exc().encode()
            results.write(path.with_name(results.file_name(name, rank, "error")), error)
            raise
        results.write(path.with_name(results.file_name(name, rank)), pickle.dumps(content))


def _function(name: str):
    module, function = name.split(".")
    return getattr(importlib.import_module(f"tests.multi_process.scenarios.{module}"), function)


def _end_with_the_tests() -> None:
    """The standard input ends when the process that started this one is gone."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
