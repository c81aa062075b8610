"""The cluster that a process belongs to, as data."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

from tfdist.cluster import tf_config


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who takes part in a training job, and which of them this process is.

    Attributes:
        jobs: the addresses "host:port" of each job, such as `{"worker": ("a:2222", "b:2222")}`.
            The jobs are "chief", "worker", "ps" and "evaluator".
        task_type: the job of this process.
        task_index: its index in that job.

    Example:

    >>> from tfdist.cluster import Cluster
    >>> cluster = Cluster({"worker": ("a:2222", "b:2222")}, "worker", 1)
    >>> cluster.rank, cluster.size, cluster.is_chief
    (1, 2, False)
    """

    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    task_index: int

    @property
    def workers(self) -> tuple[str, ...]:
        """The addresses of all that train, in the order of their ranks: the chief is the first."""
        return (*self.jobs.get("chief", ()), *self.jobs.get("worker", ()))

    @property
    def rank(self) -> int | None:
        """The place of this process in `workers`; None for a ps or an evaluator."""
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
        """Whether this process is the first of the workers, who writes the files."""
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

        What is accepted here is accepted by TensorFlow, in the same meaning.

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
        text = environ.get("TF_CONFIG", "")
        if not text.strip():
            return None
        return cls(*tf_config.parse(text))
