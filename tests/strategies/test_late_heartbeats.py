"""A lost connection is reported with what to do, where only a heartbeat is missing."""

import pytest
import tensorflow as tf

from tfdist.engines.processes import Processes
from tfdist.strategies.multi_worker.strategy import _Workers

# As TensorFlow 2.21 says it: in the rank whose heartbeat is late, and in rank 0.
LATE = (
    "Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/"
    "Heartbeat\nThe error could be from a previous operation.",
    "The following tasks are unhealthy (stopped sending heartbeats): /job:worker/replica:0/task:1",
)
BROKEN = "Additional GRPC error information: recvmsg:Connection reset by peer"


class OneOfTwo(Processes):
    """Rank 0 of two, which is connected to nobody."""

    advice = _Workers.advice

    def lost(self, error):
        return [1]

    @property
    def aside(self):
        return self

    def _sum(self, value):
        return value


def message_of(error):
    with pytest.raises(ConnectionError) as raised, OneOfTwo(0, 2).naming_lost_ranks():
        raise tf.errors.AbortedError(None, None, error)
    return str(raised.value)


@pytest.mark.parametrize("error", LATE)
def test_a_late_heartbeat_may_be_waited_for(error):
    assert message_of(error).endswith("give the strategy a larger `heartbeat_timeout`.")


def test_a_broken_connection_is_no_late_heartbeat():
    assert message_of(BROKEN).endswith("it goes on from its last backup).")
