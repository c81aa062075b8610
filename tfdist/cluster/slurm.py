"""The cluster of a Slurm job step, from the variables that `srun` sets.

`tf.distribute.cluster_resolver.SlurmClusterResolver` reads the same variables, but it has three
problems. It sorts the hosts by name, so with `n9,n10` the ranks get each other's addresses. It
needs `nvidia-smi` on every host. It gives all jobs on a host the same ports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.arguments import check_environ
from tfdist.cluster.config import Cluster

VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "TFDIST_PORT_BASE",
)

# The ports of a step: below the range for outgoing connections, 64 ports for each step of a host.
_FIRST_PORT = 10000
_PORTS_PER_STEP = 64
_PORTS = 340 * _PORTS_PER_STEP
_MOST_HOSTS = 100_000


def is_step(environ: Mapping[str, str]) -> bool:
    """Whether `srun` started this process as one of several.

    The script of `sbatch` knows the number of tasks of the job (SLURM_NTASKS), but not of a step.

    Raises:
        ValueError: in one line, when the number of tasks is not valid: each would train alone.
    """
    if "SLURM_PROCID" not in environ or not environ.get("SLURM_STEP_NUM_TASKS"):
        return False
    return _tasks(environ) > 1


def slurm_cluster(environ: Mapping[str, str]) -> Cluster:
    """The cluster that the tasks of a Slurm job step make: each task is a worker.

    Args:
        environ: the environment variables that `srun` sets. Also TFDIST_PORT_BASE, the port of the
            first task on each host. Without TFDIST_PORT_BASE, the port follows from the number of
            the step, so that steps on the same host do not use the same ports.

    Returns:
        The cluster. SLURM_PROCID is the rank.

    Raises:
        ValueError: in one line, when a variable is missing or has a mistake, or when the variables
            do not tell how the tasks were distributed.

    Example:

    >>> from tfdist.cluster import slurm_cluster
    >>> slurm_cluster({
    ...     "SLURM_STEP_NODELIST": "n[9-10]",
    ...     "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    ...     "SLURM_PROCID": "3",
    ...     "TFDIST_PORT_BASE": "2222",
    ... }).workers
    ('n9:2222', 'n9:2223', 'n10:2222', 'n10:2223')
    """
    check_environ(environ)
    hosts = expand_hosts(_variable(environ, "SLURM_STEP_NODELIST"))
    tasks = _tasks_per_host(_variable(environ, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(tasks):
        raise ValueError(
            "SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE must name the same number of hosts. "
            f"Received: {environ['SLURM_STEP_NODELIST']!r} and "
            f"{environ['SLURM_STEP_TASKS_PER_NODE']!r}"
        )
    _check_hosts(hosts)
    places = _places(tasks, environ.get("SLURM_DISTRIBUTION", "block"))
    if environ.get("SLURM_STEP_NUM_TASKS") and _tasks(environ) != len(places):
        raise ValueError(
            "SLURM_STEP_NUM_TASKS must be the number of tasks on all hosts, which is "
            f"{len(places)}. Received: SLURM_STEP_NUM_TASKS={_tasks(environ)} with "
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']!r}"
        )
    rank = _integer(environ, "SLURM_PROCID")
    if rank >= len(places):
        raise ValueError(
            f"SLURM_PROCID must be less than the number of tasks, {len(places)}. "
            f"Received: SLURM_PROCID={rank}"
        )
    _check_place(environ, *places[rank])
    port = _port_base(environ, max(tasks))
    workers = tuple(f"{hosts[host]}:{port + local}" for host, local in places)
    return Cluster({"worker": workers}, "worker", rank)


def expand_hosts(text: str) -> list[str]:
    """The hosts of a Slurm list, in Slurm's order.

    Args:
        text: such as "n[1-2,7],login". Numbers in ranges may have leading zeros.

    Returns:
        The names of the hosts.

    Raises:
        ValueError: in one line, when `text` is no such list.

    Example:

    >>> from tfdist.cluster.slurm import expand_hosts
    >>> expand_hosts("n[08-10],gpu")
    ['n08', 'n09', 'n10', 'gpu']
    """
    hosts = []
    # Commas outside of brackets separate the names; a name may have several pairs of brackets.
    for name in re.split(r",(?![^\[]*\])", text):
        parts = re.split(r"\[([^\[\]]*)\]", name)
        if not name or any(not re.fullmatch(r"[A-Za-z0-9._-]*", part) for part in parts[::2]):
            raise ValueError(f"This is no list of Slurm hosts. Received: {text!r}")
        names = [""]
        for index, part in enumerate(parts):
            choices = _numbers(part, text) if index % 2 else [part]
            if len(names) * len(choices) > _MOST_HOSTS:
                raise ValueError(f"A Slurm list has too many hosts. Received: {text!r}")
            names = [name + choice for name in names for choice in choices]
        hosts += names
    return hosts


def _numbers(ranges: str, text: str) -> list[str]:
    """The numbers that the ranges in one pair of brackets stand for."""
    numbers = []
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < _MOST_HOSTS:
            raise ValueError(f"This is no list of Slurm hosts. Received: {text!r}")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return numbers


def _tasks_per_host(text: str) -> list[int]:
    """The number of tasks on each host: "2(x3),1" means [2, 2, 2, 1]."""
    tasks = []
    for part in text.split(","):
        match = re.fullmatch(r"([1-9][0-9]{0,4})(?:\(x([1-9][0-9]{0,4})\))?", part)
        if match is None:
            raise ValueError(
                "SLURM_STEP_TASKS_PER_NODE must be numbers such as 2(x3),1. "
                f"Received: SLURM_STEP_TASKS_PER_NODE={text!r}"
            )
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _check_hosts(hosts: list[str]) -> None:
    """Raises for a host that is listed twice: its tasks would take the same ports."""
    known = set()
    for host in hosts:
        if host.lower() in known:
            raise ValueError(
                "Slurm names each host of a step once. Received: SLURM_STEP_NODELIST with "
                f"{host!r} twice"
            )
        known.add(host.lower())


def _places(tasks: list[int], distribution: str) -> list[tuple[int, int]]:
    """For each rank, its host and its place on that host."""
    places = [(host, local) for host, count in enumerate(tasks) for local in range(count)]
    if distribution.startswith("cyclic"):
        places.sort(key=lambda place: (place[1], place[0]))
    return places


def _check_place(environ: Mapping[str, str], host: int, local: int) -> None:
    """Raises unless Slurm agrees that this rank is the `local`-th task of the `host`-th host."""
    for name, expected in (("SLURM_NODEID", host), ("SLURM_LOCALID", local)):
        if name in environ and _integer(environ, name) != expected:
            raise ValueError(
                "tfdist knows the distributions `block` and `cyclic` of tasks to hosts: start the "
                "step with `srun --distribution=block`. Received: "
                f"SLURM_DISTRIBUTION={environ.get('SLURM_DISTRIBUTION')!r}, and {name}="
                f"{environ[name]!r} where {expected} was expected"
            )


def _port_base(environ: Mapping[str, str], most_on_a_host: int) -> int:
    """The port of the first task of each host. The ports of the other tasks follow."""
    if "TFDIST_PORT_BASE" in environ:
        port = _integer(environ, "TFDIST_PORT_BASE")
        if not 1 <= port <= 65536 - most_on_a_host:
            raise ValueError(
                f"TFDIST_PORT_BASE must be from 1 to {65536 - most_on_a_host}, as a host has "
                f"{most_on_a_host} task(s). Received: TFDIST_PORT_BASE={port}"
            )
        return port
    job, step = (
        _integer(environ, name) if name in environ else 0
        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return _FIRST_PORT + (4 * job + step) * _PORTS_PER_STEP % _PORTS


def _tasks(environ: Mapping[str, str]) -> int:
    tasks = environ["SLURM_STEP_NUM_TASKS"]
    if not _is_number(tasks) or int(tasks) < 1:
        raise ValueError(
            "SLURM_STEP_NUM_TASKS must be an integer >= 1, as `srun` sets it. "
            f"Received: SLURM_STEP_NUM_TASKS={tasks!r}"
        )
    return int(tasks)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _variable(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ValueError(
            f"{name} must be set, as `srun` does. Received: {name}={environ.get(name)!r}"
        )
    return environ[name]


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = _variable(environ, name)
    if not _is_number(text):
        raise ValueError(f"{name} must be an integer >= 0. Received: {name}={text!r}")
    return int(text)
