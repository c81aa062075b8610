"""`horovod` in an elastic job: a group of ranks that changes."""

from __future__ import annotations

from typing_extensions import Unpack

from tfdist.arguments import check_bool
from tfdist.compat.horovod import is_mended
from tfdist.elastic import membership
from tfdist.elastic.processes import GroupProcesses
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.strategies.elastic import ElasticStrategy
from tfdist.strategies.elastic_refusals import check_options
from tfdist.strategies.horovod.engine import HorovodEngine
from tfdist.strategies.horovod.group_connection import HorovodConnection
from tfdist.strategies.horovod.strategy import HorovodStrategy, device_of, horovod


class ElasticHorovodStrategy(ElasticStrategy, HorovodStrategy):
    """What `tfdist.HorovodStrategy` is in an elastic job.

    Args:
        log_all_ranks: whether all ranks show progress, not only the chief.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ImportError: when Horovod is not installed, was built for another TensorFlow, or not by
            `scripts/install_horovod.py`, which mends what elastic jobs need.
        ValueError: for options that do not survive the loss of a rank.
    """

    @takes_options
    def __init__(self, *, log_all_ranks: bool = False, **options: Unpack[CommonOptions]):
        common = Options(**options)  # type: ignore[arg-type]
        check_bool("log_all_ranks", log_all_ranks)
        check_options(common)
        hvd = horovod(common)
        if not is_mended(hvd):
            raise ImportError(
                "An elastic job needs a Horovod that survives broken connections: build it with "
                "`python scripts/install_horovod.py` in a checkout of tfdist, or "
                f"choose the strategy multi_worker. Received: Horovod in {hvd.__file__}"
            )
        group, connection = membership.joined(lambda: HorovodConnection(hvd))
        engine = HorovodEngine(hvd, GroupProcesses(group, connection.sum))
        self._init_elastic(common, group, engine, device_of(hvd), log_all_ranks)
