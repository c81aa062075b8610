"""`multi_worker` in an elastic job: a group of workers that changes."""

from __future__ import annotations

import os

import tensorflow as tf
from typing_extensions import Unpack

from tfdist.arguments import check_bool
from tfdist.cluster import Cluster
from tfdist.cluster.addresses import reserved_ports, split_address, without_proxy
from tfdist.elastic import membership
from tfdist.options import CommonOptions, Options, takes_options
from tfdist.strategies.elastic import ElasticStrategy
from tfdist.strategies.elastic_refusals import check_options
from tfdist.strategies.multi_worker.group_engine import CollectivesConnection, GroupEngine
from tfdist.strategies.multi_worker.strategy import MultiWorkerMirroredStrategy


class ElasticMultiWorkerStrategy(ElasticStrategy, MultiWorkerMirroredStrategy):
    """What `tfdist.MultiWorkerMirroredStrategy` is in an elastic job.

    Args:
        log_all_ranks: whether all workers show progress, not only the chief.
        **options: the options of all strategies, by keyword; see `tfdist.Options`.

    Raises:
        ValueError: for options that do not survive the loss of a rank.
    """

    @takes_options
    def __init__(self, *, log_all_ranks: bool = False, **options: Unpack[CommonOptions]):
        common = Options(**options)  # type: ignore[arg-type]
        check_bool("log_all_ranks", log_all_ranks)
        check_options(common)
        cluster = Cluster.from_environment()
        assert cluster is not None and cluster.rank is not None  # `tfdist run` has set it
        os.environ.update(without_proxy(os.environ, cluster.workers))
        address = _address(cluster, membership.number())
        group, connection = membership.joined(lambda: CollectivesConnection(address))
        engine = GroupEngine(group, connection, common.bucket_bytes)
        device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
        self._init_elastic(common, group, engine, device, log_all_ranks)


def _address(cluster: Cluster, number: int) -> str:
    """Where this process listens: at a port of its own, if it was started later than the others."""
    if number < cluster.size:
        return cluster.workers[number]
    host, _ = split_address(cluster.workers[0])
    with reserved_ports(1) as ports:
        return f"{host}:{ports[0]}"
