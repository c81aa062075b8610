"""What asynchronous training does about stale gradients.

`tfdist.Strategy("parameter_server", staleness=...)` takes one of these policies, or a list.
"""

from tfdist.staleness.base import Policies, StalenessPolicy
from tfdist.staleness.bounded import Bounded
from tfdist.staleness.delay_compensated import DelayCompensated
from tfdist.staleness.inverse_lr import InverseLR
from tfdist.staleness.ssp import SSP
from tfdist.staleness.synchronous import Synchronous

__all__ = [
    "SSP",
    "Bounded",
    "DelayCompensated",
    "InverseLR",
    "Policies",
    "StalenessPolicy",
    "Synchronous",
]
