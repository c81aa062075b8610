"""What the launcher tells the ranks about a new group; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Formation:
    """A group of ranks.

    Attributes:
        generation: the number of the group; each group has a higher one than those before.
        members: the numbers that the launcher has given to the processes, rising. The rank of a
            process is its place among them.
        addresses: where each member listens, in the order of `members`; "" if it does not.
        leaving: the members that hand over their state and leave then.
        joining: the members that get the state of the others.
        is_apart: whether this process was started later: it is alone until it comes to the others.
        restores: whether this process, which is apart, gets its state from the backup.
        waiting: whether the members come back before their next step, as others wait to join.
        recoveries: how often the group has changed so far.
        lost: how many ranks were lost so far that had no time to hand anything over.
        writes: whether this member writes the journal of its machine.
        reducers: the numbers of the processes that only sum for the members, rising.
        reducer_addresses: where each of them listens.
        first_reducers: how many of them there were when the job began.
        variables: the environment variables for this member's engine.

    Example:

    >>> from tfdist.elastic.formation import Formation
    >>> Formation(2, [0, 3], ["", ""]).rank_of(3)
    1
    """

    generation: int
    members: Sequence[int]
    addresses: Sequence[str]
    leaving: Sequence[int] = ()
    joining: Sequence[int] = ()
    is_apart: bool = False
    restores: bool = False
    waiting: bool = False
    recoveries: int = 0
    lost: int = 0
    writes: bool = False
    reducers: Sequence[int] = ()
    reducer_addresses: Sequence[str] = ()
    first_reducers: int = 0
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def rank_of(self, number: int) -> int:
        """The rank of a member."""
        return list(self.members).index(number)

    @property
    def places(self) -> dict[int, str]:
        """The address of each member, by its number."""
        return dict(zip(self.members, self.addresses))

    @property
    def reducer_places(self) -> dict[int, str]:
        """The address of each reducer, by its number."""
        return dict(zip(self.reducers, self.reducer_addresses))
