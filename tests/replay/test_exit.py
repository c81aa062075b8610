"""The exit status of `tfdist replay`, and what it prints, however the script ends."""

import os
import sys
from types import SimpleNamespace

import pytest

from tfdist.cli.main import main
from tfdist.environment import REPLAY
from tfdist.options import Options
from tfdist.replay import replayer
from tfdist.replay.events import End, Exhausted, Fit, Run, Weights
from tfdist.replay.log import Writer
from tfdist.replay.recorder import header_of
from tfdist.staleness import Policies

REPORT = "tfdist replay: 0 updates replayed; max |Δw| is 0"
STRATEGY = SimpleNamespace(
    num_workers=1, addresses={"ps": [""]}, options=Options(), policies=Policies.of(None), input=""
)


def start():
    """What making the strategy does in a replay, without a cluster."""
    return replayer.replay(os.environ[REPLAY], STRATEGY)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Replays a script; gives the exit status."""
    monkeypatch.setattr(replayer, "_started", [])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(REPLAY, "")  # so that it is restored

    def run(text, *events):
        writer = Writer(str(tmp_path / "run.log"), header_of(STRATEGY))
        for event in events:
            writer.write(event)
        script = tmp_path / "script.py"
        script.write_text(f"import sys\nfrom {__name__} import start\n{text}\n")
        return main(["replay", str(tmp_path / "run.log"), str(script)])

    return run


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no data')", 1, "no data\n"),
    ],
)
def test_a_script_may_end_with_sys_exit(run, capsys, end, status, said):
    assert run(f"start()\n{end}") == status
    assert capsys.readouterr().err.startswith(said + REPORT)


@pytest.mark.parametrize(("end", "status"), [("", 1), ("sys.exit()", 1), ("sys.exit(3)", 3)])
def test_a_fit_that_is_missing(run, capsys, end, status):
    assert run(f"start()\n{end}", Fit([]), End(None, None)) == status
    assert "the script ended after 0 of 1 recorded fits\n" in capsys.readouterr().err


def test_an_error_of_the_script_comes_after_the_report(run, capsys):
    with pytest.raises(ZeroDivisionError):
        run("start()\n1 / 0")
    assert capsys.readouterr().err.startswith(REPORT)


@pytest.mark.parametrize(("end", "status"), [("", 2), ("sys.exit(0)", 2), ("sys.exit(3)", 3)])
def test_a_script_without_a_strategy(run, capsys, end, status):
    assert run(end) == status
    assert ("there was nothing to replay. Received: " in capsys.readouterr().err) == (status == 2)


def test_a_script_goes_on_after_an_error_that_ended_a_recorded_fit(run):
    nothing = Run(0, 0, Weights(0, []))
    ended = Fit([]), nothing, Exhausted(), End("ZeroDivisionError", None)
    text = """
journal = start()
from types import SimpleNamespace
step = SimpleNamespace(variables=[], seeds=[], optimizers=[])
training = SimpleNamespace(strategy=SimpleNamespace(version=0), epoch=0, step=step, model=None)
for _ in range(2):
    try:
        with journal.fit(training):
            journal.schedule(training, None, None, None)
            1 / 0
    except ZeroDivisionError:
        pass
"""
    assert run(text, *ended, *ended) == 0
