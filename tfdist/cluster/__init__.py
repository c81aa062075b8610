"""Where a process runs: its cluster, its peers and the launcher that started it.

Nothing here imports TensorFlow, so the command line can use this package too. Only `local_cluster`
needs TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.cluster.addresses import check_port_free
from tfdist.cluster.config import Cluster
from tfdist.cluster.environments import Launch, choose_strategy, describe, slurm_cluster
from tfdist.cluster.parameter_server import check_parameter_server_cluster, wait_for_servers
from tfdist.cluster.peers import wait_for_peers
from tfdist.cluster.server import serve

if TYPE_CHECKING:
    from tfdist.cluster.local import local_cluster

__all__ = [
    "Cluster",
    "Launch",
    "check_parameter_server_cluster",
    "check_port_free",
    "choose_strategy",
    "describe",
    "local_cluster",
    "serve",
    "slurm_cluster",
    "wait_for_peers",
    "wait_for_servers",
]


def __getattr__(name: str) -> Any:
    if name != "local_cluster":
        raise AttributeError(f"module 'tfdist.cluster' has no attribute {name!r}")
    from tfdist.cluster.local import local_cluster

    return local_cluster
