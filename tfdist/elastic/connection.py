"""What an engine adds to the contract of engines so that its processes can form new groups."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from tfdist.elastic.formation import Formation


class Connection(Protocol):
    """Connects the processes of an elastic job, again and again."""

    @property
    def address(self) -> str:
        """Where this process listens; "" if others need not know."""

    def form(self, formation: Formation, own: int) -> None:
        """Connects this process to the other members of a group; the variables stay.

        Args:
            formation: the group.
            own: the number of this process among the members.
        """

    def leave(self) -> None:
        """Leaves the group. Operations that still run in it fail."""

    def interrupt(self) -> None:
        """Makes operations fail that wait for others, and those that come; in another thread."""

    def is_loss(self, error: Exception) -> bool:
        """Whether an operation failed with `error` because of the loss of a process."""

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum of a tensor of numbers over the group; outside of a `tf.function`."""
