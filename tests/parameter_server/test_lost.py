"""Errors that name the servers that are lost."""

import pytest
import tensorflow as tf

from tfdist.parameter_server.chief.errors import explained
from tfdist.parameter_server.chief.scheduler import Scheduler, WorkersLostError
from tfdist.parameter_server.chief.turns import Limits

ADDRESSES = {"worker": ["a:1", "b:2"], "ps": ["c:3", "d:4"]}

# What TensorFlow 2.21 raised when ps 1 of 3 was killed, without the errors that it repeats.
TEXT = """Graph execution error:

Detected at node values_1/_2 defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) UNAVAILABLE:  recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:ps/replica:0/task:1/device:CPU:0 while \
calling /tensorflow.eager.EagerService/RunComponentFunction:
:UNKNOWN:Error received from peer  {grpc_message:"recvmsg:Connection reset by peer", grpc_status:14}
  (1) UNAVAILABLE:  recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:ps/replica:0/task:1 while calling \
/tensorflow.WorkerService/RecvTensor:
:UNKNOWN:Error received from peer  {grpc_message:"recvmsg:Connection reset by peer", grpc_status:14}
 [[{{node values_1/_2}}]]
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling \
/tensorflow.eager.EagerService/Enqueue:
:UNKNOWN:Error received from peer  {grpc_status:14}"""
DEVICE = "\n\t [[{{node read}}]] placed on /job:ps/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize("text", [TEXT, TEXT + DEVICE], ids=["alone", "with a device of another"])
def test_the_parameter_server_that_did_not_answer_is_named(text):
    error = explained(tf.errors.UnavailableError(None, None, text), ADDRESSES, 1.0)
    assert isinstance(error, ConnectionError)
    assert str(error).startswith("ps 1 (d:4) is lost")


def test_all_workers_are_lost():
    schedule = Scheduler(
        2,
        source=None,
        compute=None,
        limits=Limits(None, budget=None, per_item=1, first_item=1, max_pending=2),
        lost={0, 1},
        on_change=None,
        on_wait=None,
    )
    with pytest.raises(WorkersLostError) as raised:
        schedule.next(lambda others: True, timeout=0.01)
    error = explained(raised.value, ADDRESSES, 0.01)
    assert isinstance(error, ConnectionError)
    assert "more than 0.01 s: worker 0 (a:1), worker 1 (b:2)." in str(error)
    assert str(error).endswith("Received: worker_timeout=0.01")
