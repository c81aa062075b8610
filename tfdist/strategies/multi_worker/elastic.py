"""`multi_worker` in an elastic job: a group of workers that changes."""

from __future__ import annotations

import contextlib
import os

import tensorflow as tf
from typing_extensions import Unpack

from tfdist.arguments import check_bool
from tfdist.cluster import Cluster
from tfdist.cluster.addresses import address_of, reserved_ports
from tfdist.elastic import membership
from tfdist.environment import ELASTIC_HOST
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.strategies.elastic import ElasticStrategy
from tfdist.strategies.elastic_refusals import check_options
from tfdist.strategies.multi_worker.group_engine import CollectivesConnection, GroupEngine
from tfdist.strategies.multi_worker.reducers.elastic import serve_groups
from tfdist.strategies.multi_worker.reducers.joining import check_options as check_for_reducers
from tfdist.strategies.multi_worker.strategy import MultiWorkerMirroredStrategy

# Keeps the port of this process from others until TensorFlow listens there.
_reserved = contextlib.ExitStack()


class ElasticMultiWorkerStrategy(ElasticStrategy, MultiWorkerMirroredStrategy):
    """What `tfdist.MultiWorkerMirroredStrategy` is in an elastic job.

    Args:
        log_all_ranks: whether all workers show progress, not only the chief.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ValueError: for options that do not survive the loss of a rank, or have no use for the
            reducers that there are.
        SystemExit: in a reducer, when the job has ended.
    """

    @takes_options
    def __init__(self, *, log_all_ranks: bool = False, **options: Unpack[CommonOptions]):
        common = Options(**options)  # type: ignore[arg-type]
        check_bool("log_all_ranks", log_all_ranks)
        check_options(common)
        cluster = Cluster.from_environment()
        if cluster is not None and cluster.task_type == "reducer":
            serve_groups(_address())
            raise SystemExit(0)
        group, connection = membership.joined(lambda: CollectivesConnection(_address()))
        if connection.first_reducers:
            check_for_reducers(common, connection.first_reducers)
        suits_reducers = common.exchange == "auto" and common.local is None
        engine = GroupEngine(group, connection, common.bucket_bytes, suits_reducers)
        device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
        self._init_elastic(common, group, engine, device, log_all_ranks)


def _address() -> str:
    """Where this process listens, for as long as it runs."""
    (port,) = _reserved.enter_context(reserved_ports(1))
    return address_of(os.environ[ELASTIC_HOST], port)
