"""Ctrl-C at a moment when no question to the other processes follows any more."""

import os
import signal

import pytest

import tfdist
from tfdist.processes import runs


def test_ctrl_c_after_the_last_step_is_not_swallowed():
    strategy = tfdist.MultiWorkerMirroredStrategy()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), runs.coordinated(strategy, lambda: None):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with runs.coordinated(strategy, lambda: None):
        pass  # and is forgotten afterwards
