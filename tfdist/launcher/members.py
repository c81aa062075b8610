"""The processes of a job: the name of each process, and what its end means for the others."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Role:
    """What a job makes of the end of a process.

    Attributes:
        settle: seconds that the other processes have to end by themselves, once this one failed.
        leads: the job is done when the process ends with status 0.
        spare: the job goes on without the process while another process of the same role runs.
        stalls: the job ends when the process is stopped for too long.
        beside: the process has no part in training. Without it the job goes on, and once training
            has ended well, the job waits for its end.
        restarts: the process is started again when it fails, a limited number of times.
    """

    settle: float = 1.0
    leads: bool = False
    spare: bool = False
    stalls: bool = True
    beside: bool = False
    restarts: bool = False


PEER = Role()
CHIEF = Role(leads=True)
# The chief notices that it has lost a process that it needs, and says so, but not at once.
WORKER = Role(settle=60.0, spare=True, stalls=False)
PS = Role(settle=60.0, restarts=True)
REDUCER = Role()
EVALUATOR = Role(stalls=False, beside=True)


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of a job, before it is started.

    Attributes:
        kind: "rank", "ps" for a parameter server, "evaluator" or "reducer".
        number: its place among the processes of its kind.
        role: what the end of the process means.
        task: its job and index in TF_CONFIG.

    Example:

    >>> from tfdist.launcher.members import PS, Member
    >>> member = Member("ps", 0, PS, ("ps", 0))
    >>> member.name, member.label, member.log_name
    ('ps 0', 'ps 0', 'ps-0.log')
    """

    kind: str
    number: int
    role: Role
    task: tuple[str, int]

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        return f"{self.kind} {self.number}"

    @property
    def label(self) -> str:
        """The label in front of the lines that the process prints."""
        return str(self.number) if self.kind == "rank" else self.name

    @property
    def log_name(self) -> str:
        """The name of the file that keeps what the process prints."""
        return f"{self.kind}-{self.number}.log"


def members(
    count: int,
    ps: int = 0,
    evaluator: bool = False,
    reducers: int = 0,
    *,
    first: int = 0,
    first_reducer: int = 0,
) -> list[Member]:
    """The processes of a job, in the order in which they are started.

    Args:
        count: the number of ranks. With parameter servers, rank 0 is the chief and the others are
            the workers.
        ps: the number of parameter servers; with 0 all ranks are equal.
        evaluator: whether there is an evaluator; only with parameter servers.
        reducers: the number of reducers; only without parameter servers.
        first: the number of the first rank; other machines have those before it.
        first_reducer: the number of the first reducer, likewise.

    Example:

    >>> from tfdist.launcher.members import members
    >>> [(member.name, *member.task) for member in members(2, ps=1)]
    [('rank 0', 'chief', 0), ('rank 1', 'worker', 0), ('ps 0', 'ps', 0)]
    """
    if not ps:
        return [
            *(Member("rank", rank, PEER, ("worker", rank)) for rank in range(first, first + count)),
            *(
                Member("reducer", number, REDUCER, ("reducer", number))
                for number in range(first_reducer, first_reducer + reducers)
            ),
        ]
    return [
        Member("rank", 0, CHIEF, ("chief", 0)),
        *(Member("rank", rank, WORKER, ("worker", rank - 1)) for rank in range(1, count)),
        *(Member("ps", index, PS, ("ps", index)) for index in range(ps)),
        *(Member("evaluator", 0, EVALUATOR, ("evaluator", 0)) for _ in range(evaluator)),
    ]


def elastic_member(kind: str, number: int) -> Member:
    """A process of an elastic job.

    Args:
        kind: "rank" or "reducer".
        number: its number, which no other process of the job has, whatever it is.

    Example:

    >>> from tfdist.launcher.members import elastic_member
    >>> elastic_member("reducer", 4).name
    'reducer 4'
    """
    role, job = {"rank": (PEER, "worker"), "reducer": (REDUCER, "reducer")}[kind]
    return Member(kind, number, role, (job, number))


def named(some: list[Member]) -> str:
    """Several members in one phrase.

    Example:

    >>> from tfdist.launcher.members import members, named
    >>> named(members(3, ps=2))
    'ranks 0, 1, 2 and ps 0, 1'
    """
    phrases = []
    plurals = {"rank": "ranks", "ps": "ps", "evaluator": "evaluators", "reducer": "reducers"}
    for kind, plural in plurals.items():
        numbers = [str(member.number) for member in some if member.kind == kind]
        if numbers:
            phrases.append(f"{plural if len(numbers) > 1 else kind} {', '.join(numbers)}")
    return " and ".join(phrases)
