"""How a process was started, read from the environment variables that launchers set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from tfdist import environment
from tfdist.arguments import check_environ
from tfdist.cluster import slurm
from tfdist.cluster.config import Cluster
from tfdist.cluster.slurm import slurm_cluster

__all__ = ["Launch", "RANK_VARIABLES", "choose_strategy", "describe", "slurm_cluster"]

# The two variables with which some launchers number their processes, by the launcher's name.
_NUMBERED = {
    "Horovod": ("HOROVOD_RANK", "HOROVOD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
}
_HOROVOD_LAUNCHERS = tuple(_NUMBERED)

# The variables that tell how many processes of a job share a host.
_LOCAL_SIZES = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

# The variables that tell a process its place. A launcher that runs in another launcher's process
# must not pass them on.
RANK_VARIABLES = (
    "TF_CONFIG",
    *(variable for pair in _NUMBERED.values() for variable in pair),
    "PMIX_RANK",
    *slurm.VARIABLES,
)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How this process was started.

    Attributes:
        launcher: "Horovod", "Open MPI", "MPI" (MPICH, Intel MPI and others), "TF_CONFIG", "Slurm",
            or "python" for a process on its own.
        rank: the place of this process among those that train, from 0; None for a process of a
            cluster that does not train, such as a parameter server.
        size: the number of processes that train.
        variables: the environment variables that tell this, with their values.
        cluster: the cluster, where TF_CONFIG or Slurm tells the addresses.
    """

    launcher: str
    rank: int | None
    size: int
    variables: Mapping[str, str]
    cluster: Cluster | None = None


def describe(environ: Mapping[str, str] = os.environ) -> Launch:
    """Tells how this process was started.

    `mpirun` in a Slurm job leaves the variables of both. So there is an order: Horovod's and MPI's
    variables count before TF_CONFIG, and TF_CONFIG counts before Slurm's variables. A single
    process of MPI counts last.

    Args:
        environ: the environment variables.

    Returns:
        The launcher, the rank and the number of processes.

    Raises:
        ValueError: in one line, when the variables contradict each other or have a mistake.

    Example:

    >>> from tfdist.cluster import describe
    >>> launch = describe({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})
    >>> launch.launcher, launch.rank, launch.size
    ('Open MPI', 1, 4)
    """
    check_environ(environ)
    if wants_reducers(environ):  # ranks of Horovod that have met have TF_CONFIG, too
        met = _clustered(environ)
        if met is not None and has_reducers(met):
            return met
    numbered = _numbered(environ)
    if numbered is not None and (numbered.size > 1 or numbered.launcher == "Horovod"):
        return numbered
    return _clustered(environ) or numbered or Launch("python", 0, 1, {})


def choose_strategy(
    environ: Mapping[str, str], local_devices: int, horovod_installed: bool
) -> tuple[str, str]:
    """The strategy that fits where a process runs, for `tfdist.Strategy("auto")`.

    Args:
        environ: the environment variables.
        local_devices: the number of devices that a strategy on this machine would use.
        horovod_installed: whether Horovod can be imported.

    Returns:
        The name of the strategy, and the reason: words that can follow "because".

    Raises:
        ValueError: in one line, when the variables have a mistake, and when MPI or Horovod started
            several processes, but Horovod is not installed.

    Example:

    >>> from tfdist.cluster import choose_strategy
    >>> choose_strategy({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, 1, horovod_installed=True)
    ('horovod', 'Horovod started this process as rank 0 of 2 (HOROVOD_RANK is set)')
    """
    check_environ(environ)
    if environment.REPLAY in environ:
        return "parameter_server", f"a record is replayed ({environment.REPLAY} is set)"
    launch = describe(environ)
    if wants_reducers(environ):
        return "multi_worker", f"some ranks only sum ({environment.REDUCERS} is set)"
    if launch.launcher in _HOROVOD_LAUNCHERS:
        variable = _NUMBERED[launch.launcher][0]
        if horovod_installed:
            return "horovod", (
                f"{launch.launcher} started this process as rank {launch.rank} of {launch.size} "
                f"({variable} is set)"
            )
        # A script may have made its TF_CONFIG from MPI's variables.
        clustered = _clustered(environ)
        if clustered is None and launch.size > 1:
            raise ValueError(
                f"{launch.launcher} started this process as one of {launch.size}, but Horovod is "
                "not installed: install it with `python scripts/install_horovod.py` in a checkout "
                "of tfdist, or start the script with `tfdist run` or with TF_CONFIG. "
                f"Received: {variable}={environ[variable]!r}"
            )
        launch = clustered or Launch("python", 0, 1, {})
    if launch.cluster is not None:
        if launch.cluster.task_type == "evaluator":
            return "mirrored", f"{launch.launcher} names this process an evaluator"
        if launch.cluster.jobs.get("ps"):
            return "parameter_server", f"{launch.launcher} has a `ps` job"
        if has_reducers(launch):
            return "multi_worker", f"{launch.launcher} has a `reducer` job"
        if launch.size > 1:
            return "multi_worker", f"{launch.launcher} has {launch.size} workers"
        if environment.ELASTIC in environ:
            return "multi_worker", f"the job is elastic ({environment.ELASTIC} is set)"
    devices = "device" if local_devices == 1 else "devices"
    return "mirrored", f"this is one process with {local_devices} local {devices}"


def wants_reducers(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether TFDIST_REDUCERS asks for reducers: it is neither empty nor 0.

    Example:

    >>> from tfdist.cluster.environments import wants_reducers
    >>> wants_reducers({"TFDIST_REDUCERS": "2"}), wants_reducers({"TFDIST_REDUCERS": "0"})
    (True, False)
    """
    return environ.get(environment.REDUCERS, "") not in ("", "0")


def has_reducers(launch: Launch) -> bool:
    """Whether the cluster of a process has reducers."""
    return launch.cluster is not None and bool(launch.cluster.jobs.get("reducer"))


def ranks_of_this_host(environ: Mapping[str, str] = os.environ) -> int:
    """How many of the processes that train share this host, as far as the launcher tells.

    Args:
        environ: the environment variables.

    Raises:
        ValueError: as `describe`.

    Example:

    >>> from tfdist.cluster.environments import ranks_of_this_host
    >>> both = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2"}
    >>> ranks_of_this_host(both)
    2
    """
    launch = describe(environ)
    if launch.cluster is not None:
        host = _host(launch.cluster.address or "")
        return max(1, [_host(address) for address in launch.cluster.workers].count(host))
    return next((_number(environ, name) for name in _LOCAL_SIZES if name in environ), 1)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _numbered(environ: Mapping[str, str]) -> Launch | None:
    """The launch as Horovod's or MPI's variables describe it, if they are set."""
    for launcher, (rank_variable, size_variable) in _NUMBERED.items():
        if rank_variable not in environ and size_variable not in environ:
            continue
        if launcher == "MPI" and slurm.is_step(environ):
            continue  # srun sets MPI's variables too, for programs that do not know Slurm
        variables = {
            name: environ[name] for name in (rank_variable, size_variable) if name in environ
        }
        rank, size = (_number(environ, name) for name in (rank_variable, size_variable))
        if not 0 <= rank < size:
            raise ValueError(
                f"{rank_variable} must be from 0 to {size_variable} - 1. Received: "
                f"{rank_variable}={rank}, {size_variable}={size}"
            )
        return Launch(launcher, rank, size, variables)
    return None


def _clustered(environ: Mapping[str, str]) -> Launch | None:
    """The launch as TF_CONFIG or Slurm's variables describe it, if they are set."""
    cluster = Cluster.from_environment(environ)
    if cluster is not None:
        variables = {"TF_CONFIG": environ["TF_CONFIG"]}
        return Launch("TF_CONFIG", cluster.rank, cluster.size, variables, cluster)
    if slurm.is_step(environ):
        cluster = slurm_cluster(environ)
        variables = {name: environ[name] for name in slurm.VARIABLES if name in environ}
        return Launch("Slurm", cluster.rank, cluster.size, variables, cluster)
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ValueError(f"{name} must be set when its partner is. Received: {name}=None")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name} must be an integer >= 0. Received: {name}={text!r}")
    return int(text)
