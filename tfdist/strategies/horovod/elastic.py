"""`horovod` in an elastic job: a group of ranks that changes."""

from __future__ import annotations

from typing_extensions import Unpack

from tfdist.arguments import check_bool
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
        ImportError: when Horovod is not installed or was built for another TensorFlow.
        ValueError: for options that do not survive the loss of a rank.
    """

    @takes_options
    def __init__(self, *, log_all_ranks: bool = False, **options: Unpack[CommonOptions]):
        common = Options(**options)  # type: ignore[arg-type]
        check_bool("log_all_ranks", log_all_ranks)
        check_options(common)
        hvd = horovod(common)
        group, connection = membership.joined(lambda: HorovodConnection(hvd))
        engine = HorovodEngine(hvd, GroupProcesses(group, connection.sum))
        self._init_elastic(common, group, engine, device_of(hvd), log_all_ranks)
