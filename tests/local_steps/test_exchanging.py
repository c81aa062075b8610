"""Exchanges beside steps: nothing is merged before they have ended well."""

import os
import signal
import threading

import pytest

from tfdist.step.local_exchanging import Exchanging


class _Rounds:
    """Rounds of which fragment 0 was sent, to be merged after two updates.

    Args:
        exchange: what exchanges it.
    """

    def __init__(self, exchange):
        self._exchange = exchange
        self.overlapping = self

    def waiting(self):
        return 0, 2

    def exchange_of(self, number):
        assert number == 0
        return self._exchange


def test_an_interrupted_wait_can_be_repeated():
    may_end, has_ended = threading.Event(), threading.Event()

    def exchange():
        may_end.wait()
        has_ended.set()

    rounds, exchanging = _Rounds(exchange), Exchanging()
    exchanging.begin(rounds, 1)
    interrupt = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        exchanging.wait(rounds)
    assert exchanging.is_under_way(rounds)
    exchanging.begin(rounds, 1)  # not a second one
    threading.Timer(0.3, may_end.set).start()
    exchanging.wait(rounds)
    assert has_ended.is_set()
    assert not exchanging.is_under_way(rounds)


def test_a_failed_exchange_is_logged_and_raised_again(caplog):
    def exchange():
        raise RuntimeError("rank 1 is lost")

    rounds, exchanging = _Rounds(exchange), Exchanging()
    exchanging.begin(rounds, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="rank 1 is lost"):
            exchanging.wait(rounds)
        assert exchanging.is_under_way(rounds)
    assert "exchange beside the steps has failed: RuntimeError: rank 1 is lost" in caplog.text
