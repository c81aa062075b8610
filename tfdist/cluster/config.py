"""The cluster that a process belongs to, as data."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

from tfdist.arguments import check_environ, check_instance, shown
from tfdist.cluster import tf_config
from tfdist.cluster.addresses import same_place
from tfdist.limits import INT32_MAX


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a training job, and which one this process is.

    Attributes:
        jobs: the addresses "host:port" of each job, such as `{"worker": ("a:2222", "b:2222")}`.
            The jobs are "chief", "worker", "ps", "evaluator" and, a name of tfdist's own,
            "reducer".
        task_type: the job of this process.
        task_index: the index of this process in that job.

    Raises:
        TypeError: when an argument is of another type.
        ValueError: for an unknown job, a negative index, an invalid address, and an address that is
            given twice.

    Example:

    >>> from tfdist.cluster import Cluster
    >>> cluster = Cluster({"worker": ("a:2222", "b:2222")}, "worker", 1)
    >>> cluster.rank, cluster.size, cluster.is_chief
    (1, 2, False)
    """

    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    task_index: int

    def __post_init__(self) -> None:
        check_instance("jobs", self.jobs, Mapping, "mapping of jobs to lists of addresses")
        check_instance("task_type", self.task_type, str, "str")
        index = self.task_index
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= INT32_MAX:
            raise ValueError(
                f"`task_index` must be an integer from 0 to {INT32_MAX}. "
                f"Received: task_index={shown(index)}"
            )
        unknown = [job for job in (*self.jobs, self.task_type) if job not in tf_config.JOBS]
        if unknown:
            raise ValueError(
                f"The jobs are {', '.join(tf_config.JOBS)}. Received: {shown(unknown[0])}"
            )
        seen: dict[tuple[str, int], str] = {}
        for job, addresses in self.jobs.items():
            if not isinstance(addresses, (list, tuple)):
                raise TypeError(
                    "The addresses of a job must be in a list or tuple. "
                    f"Received: {job}={shown(addresses)}"
                )
            for address in addresses:
                earlier = seen.setdefault(same_place(address), address)
                if earlier is not address:
                    raise ValueError(
                        f"Two tasks cannot have the same address. Received: {earlier} and {address}"
                    )

    @property
    def workers(self) -> tuple[str, ...]:
        """The addresses of all processes that train, in the order of their ranks, chief first."""
        return (*self.jobs.get("chief", ()), *self.jobs.get("worker", ()))

    @property
    def rank(self) -> int | None:
        """The place of this process in `workers`; None for others."""
        if self.task_type == "chief":
            return 0
        if self.task_type == "worker":
            return len(self.jobs.get("chief", ())) + self.task_index
        return None

    @property
    def size(self) -> int:
        """The number of workers, with the chief."""
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the first of the workers, which writes the files."""
        return self.rank == 0

    @property
    def address(self) -> str | None:
        """The address of this process; None for an evaluator that is not in `jobs`."""
        tasks = self.jobs.get(self.task_type, ())
        return tasks[self.task_index] if self.task_index < len(tasks) else None

    def to_tf_config(self) -> str:
        """The cluster as text for the environment variable TF_CONFIG.

        Example:

        >>> from tfdist.cluster import Cluster
        >>> Cluster({"worker": ("a:2222",)}, "worker", 0).to_tf_config()
        '{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}'
        """
        cluster = {job: list(addresses) for job, addresses in self.jobs.items()}
        task = {"type": self.task_type, "index": self.task_index}
        return json.dumps({"cluster": cluster, "task": task})

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Cluster | None:
        """The cluster of the environment variable TF_CONFIG.

        TensorFlow accepts all that is accepted here, with the same meaning, except for reducers.

        Args:
            environ: the environment variables.

        Returns:
            The cluster, or None where TF_CONFIG is not set or empty.

        Raises:
            ValueError: in one line, naming the field and its value, when TF_CONFIG has a mistake.

        Example:

        >>> from tfdist.cluster import Cluster
        >>> text = '{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}'
        >>> Cluster.from_environment({"TF_CONFIG": text}).workers
        ('a:2222',)
        """
        check_environ(environ)
        text = environ.get("TF_CONFIG", "")
        if not text.strip():
            return None
        return cls(*tf_config.parse(text))
