"""The launcher, whose jobs end with the test."""

import signal

import pytest

from tests.cli.launching import Launcher
from tfdist.cluster.addresses import free_ports


@pytest.fixture
def signals():
    """A suite that runs in the background or under nohup ignores these, and would pass that on."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP,)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def launcher(signals, tmp_path):
    launcher = Launcher(tmp_path / "job")
    yield launcher
    launcher.close()


@pytest.fixture
def two(signals, tmp_path):
    """Two machines: folders of their own, and one for what the scripts note."""
    launchers = [Launcher(tmp_path / "first"), Launcher(tmp_path / "second")]
    yield launchers
    for launcher in launchers:
        launcher.close()


@pytest.fixture
def address():
    return f"127.0.0.1:{free_ports(1)[0]}"
