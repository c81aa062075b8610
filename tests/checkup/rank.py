"""One rank of `tfdist test`, with fewer features, on a host of `tests.traffic.network` or here.

python -m tests.checkup.rank FEATURES BROKEN BACKEND FOLDER [RANK FOLDER ADDRESS...]

Trains with the first FEATURES features. The weights of rank BROKEN come out wrong; -1 for none.
"""

import os
import pathlib
import sys

from tests.traffic.joining import join

_FEATURES, _BROKEN, _BACKEND, _FOLDER, *_PLACE = sys.argv[1:]


def main() -> int:
    """Runs the command, and keeps its exit status."""
    if _PLACE:
        rank, folder, *addresses = _PLACE
        join(_BACKEND, int(rank), pathlib.Path(folder), addresses)
    from tfdist.checkup import equality, features
    from tfdist.cli.main import main as command
    from tfdist.cluster import describe

    features.ALL = features.ALL[: int(_FEATURES)]
    rank = describe(os.environ).rank
    if rank == int(_BROKEN):
        _break(equality)
    status = command(["test", "--strategy", _BACKEND, "--json", str(_FOLDER) + "/found.json"])
    pathlib.Path(_FOLDER, f"status-{rank}").write_text(str(status))
    return status if not _PLACE else 0


def _break(equality) -> None:
    """Makes one element of the weights wrong, as on a device that computes wrongly."""
    train = equality.train

    def broken(feature, replicas, strategy=None, callbacks=()):
        weights = train(feature, replicas, strategy, callbacks)
        if strategy is not None:
            weights[0][0, 0] += 1e-4
        return weights

    equality.train = broken


if __name__ == "__main__":
    sys.exit(main())
