"""What a staleness policy is: answers to the questions that come up in an asynchronous step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.arguments import shown


@dataclasses.dataclass(frozen=True)
class StalenessPolicy:
    """Base class of the policies; the fields are the options. By itself it restricts nothing.

    The staleness τ of a gradient counts updates: those that come after the worker has read the
    weights, and before the gradient's own update. Without any, τ is 0.
    """

    synchronous: ClassVar[bool] = False
    """Whether the workers compute parts of one global batch and update together."""
    compensates: ClassVar[bool] = False
    """Whether `compensate` changes gradients."""

    def parts(self, workers: int) -> int:
        """Into how many parts the `workers` divide a global batch; 0 if each batch is one's own."""
        return workers if self.synchronous else 0

    @property
    def waits(self) -> bool:
        """Whether `may_start` or `may_update` may say no."""
        kind = type(self)
        return (kind.may_start, kind.may_update) != (
            StalenessPolicy.may_start,
            StalenessPolicy.may_update,
        )

    @property
    def drops(self) -> bool:
        """Whether `accepts` may say no."""
        return type(self).accepts != StalenessPolicy.accepts

    def may_start(self, ahead: int, under_way: int) -> bool:
        """Whether a worker may start a step.

        Args:
            ahead: how many steps more than the slowest worker this worker has finished.
            under_way: the number of steps of other workers that are not applied yet.
        """
        del ahead, under_way
        return True

    def may_update(self, others: Sequence[int]) -> bool:
        """Whether an update may come before the updates of steps that are under way.

        Args:
            others: the staleness of the gradients of these steps, if they were applied right after
                this update, one after the other, the oldest first.
        """
        del others
        return True

    def accepts(self, staleness: int) -> bool:
        """Whether a gradient of this staleness is applied; otherwise it is dropped."""
        del staleness
        return True

    def learning_rate_factor(self, staleness: int) -> float:
        """What the learning rate of its update is multiplied by."""
        del staleness
        return 1.0

    def init(self, variable: tf.Variable) -> Any:
        """State for one variable, made in the strategy's scope; None for no state."""
        del variable

    def compensate(self, gradient: tf.Tensor, moved: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        """A variable's gradient as it is applied.

        Args:
            gradient: the gradient as it was computed.
            moved: how much the variable has changed since the worker read it.
            state: what `init` made.
        """
        del moved, state
        return gradient


@dataclasses.dataclass(frozen=True)
class Policies(StalenessPolicy):
    """Several policies: what one of them forbids does not happen; factors are multiplied.

    Args:
        policies: the policies. Policies that change gradients do so in this order.

    Raises:
        ValueError: for what is no policy, and for policies that contradict each other.
    """

    policies: tuple[StalenessPolicy, ...] = ()

    def __post_init__(self) -> None:
        given = self.policies
        several = isinstance(given, (list, tuple))
        if not several or not all(isinstance(policy, StalenessPolicy) for policy in given):
            raise ValueError(
                "`staleness` must be a policy of `tfdist.staleness`, such as InverseLR(), or a "
                f"list of them. Received: staleness={shown(given)}"
            )
        object.__setattr__(self, "policies", tuple(given))
        kinds = [type(policy) for policy in self.policies]
        if any(policy.synchronous for policy in self.policies) and len(kinds) > 1:
            raise ValueError(
                "With Synchronous no gradient is stale, so no other policy has anything to do: use "
                f"it alone. Received: staleness={list(self.policies)}"
            )
        if len(set(kinds)) < len(kinds):
            raise ValueError(
                f"A kind of policy can be used once. Received: staleness={list(self.policies)}"
            )

    @classmethod
    def of(cls, staleness: Any) -> Policies:
        """What the option `staleness` means.

        Args:
            staleness: a policy, several policies, or None for none.

        Raises:
            ValueError: for what is no policy, and for policies that contradict each other.
        """
        if isinstance(staleness, Policies):
            return staleness
        if staleness is None:
            return cls()
        return cls((staleness,) if isinstance(staleness, StalenessPolicy) else staleness)

    @property
    def synchronous(self) -> bool:  # type: ignore[override]
        """Whether the policy is `Synchronous`."""
        return any(policy.synchronous for policy in self.policies)

    def parts(self, workers: int) -> int:
        """What the only one says that divides batches; 0 if none does."""
        return max((policy.parts(workers) for policy in self.policies), default=0)

    @property
    def backup(self) -> bool:
        """Whether idle workers compute parts that others have not finished."""
        return any(getattr(policy, "backup", False) for policy in self.policies)

    @property
    def drop(self) -> int:
        """How many parts of a global batch an update does not wait for."""
        return max((getattr(policy, "drop", 0) for policy in self.policies), default=0)

    @property
    def compensates(self) -> bool:  # type: ignore[override]
        """Whether one of them changes gradients."""
        return any(policy.compensates for policy in self.policies)

    @property
    def waits(self) -> bool:
        """Whether one of them lets workers wait."""
        return any(policy.waits for policy in self.policies)

    @property
    def drops(self) -> bool:
        """Whether one of them drops gradients."""
        return any(policy.drops for policy in self.policies)

    def may_start(self, ahead: int, under_way: int) -> bool:
        """Whether all agree."""
        return all(policy.may_start(ahead, under_way) for policy in self.policies)

    def may_update(self, others: Sequence[int]) -> bool:
        """Whether all agree."""
        return all(policy.may_update(others) for policy in self.policies)

    def accepts(self, staleness: int) -> bool:
        """Whether all agree."""
        return all(policy.accepts(staleness) for policy in self.policies)

    def learning_rate_factor(self, staleness: int) -> float:
        """The product of the policies' factors."""
        product = 1.0
        for policy in self.policies:
            product *= policy.learning_rate_factor(staleness)
        return product

    def init(self, variable: tf.Variable) -> Any:
        """The policies' states, in a list."""
        return [policy.init(variable) for policy in self.policies]

    def compensate(self, gradient: tf.Tensor, moved: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        """The gradient after all policies, one after the other."""
        for policy, own in zip(self.policies, state):
            gradient = policy.compensate(gradient, moved, own)
        return gradient
