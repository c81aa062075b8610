"""What faults do to parameter server jobs: the rows of the table in docs/faults.md, with verdicts.

Here "after update N" is when the chief has N updates; what is injected then meets whatever the
processes are doing.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import pickle
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tests.elastic.test_faults import launch
from tests.faults import servers
from tests.faults.rows import Row, difference
from tests.faults.servers_job import BATCH, SAMPLES, SYNCHRONOUS

DEADLINE = 500.0  # seconds for the chief, from the start of all processes
# For the others, once the chief has ended. A machine that was cut off finds that the chief's does
# not answer after half a minute, and tries to reach it for TFDIST_CONNECT_TIMEOUT.
OTHERS = 120.0
HEAD = ["policy", "what happens", "what the job does", "seconds", "max Δw"]
TEXT = (
    'A chief, two workers, a parameter server, and `input="dynamic"`; hosts of their own, which '
    "are network namespaces, where a network is named. The seconds are those of the whole `fit`; "
    "for a job that ends, those from the fault to the chief's end. Under `Synchronous()` the "
    "largest difference of a weight is that from one device. Otherwise the weights depend on the "
    "order of "
    'the updates; "exact" says that each sample was used once in each epoch, and that versions, '
    "iterations and the metric's sum say so too. In each row all processes ended by themselves."
)
_PS = r"ConnectionError: ps 0 \(ADDRESS\) is lost, and with it its part of the weights\."


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens in a job, and what must come of it.

    Attributes:
        faults: as for `Servers.train`.
        around: as for `servers.servers`.
        ends: the last line of the chief, as a regular expression in which ADDRESS is that of the
            parameter server; "" when training goes on.
        said: a text in what the chief prints, as a regular expression.
        loses: whether updates are lost, as training goes back to a snapshot.
        environ: environment variables.
    """

    faults: Sequence[str] = ()
    around: str = ""
    ends: str = ""
    said: str = ""
    loses: bool = False
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


_LOST = r"tfdist: worker 0 \(.*\) is lost; training goes on with the others"
_IMPATIENT = {"WORKER_TIMEOUT": "5"}
FAULTS = {
    "nothing": Fault(),
    "a worker dies": Fault(["worker-0:SIGKILL:5"], said=_LOST),
    "a worker dies and is started again": Fault(
        ["worker-0:RESTART:5"], said=_LOST, environ={"SECONDS": "0.4"}
    ),
    "a worker is stopped for 5 s": Fault(["worker-0:PAUSE:5"]),
    "the parameter server is stopped for 5 s": Fault(["ps-0:PAUSE:5"]),
    "the chief is stopped for 5 s": Fault(["chief-0:PAUSE:5"]),
    "all clocks are set one day forward, and a worker dies": Fault(
        ["chief-0:CLOCK:5", "worker-0:SIGKILL:10"], around="clock", said=_LOST
    ),
    "the disk for snapshots is full": Fault(["worker-0:SIGKILL:5"], around="disk", said=_LOST),
    "the parameter server dies and is started again": Fault(
        ["ps-0:RESTART:10"],
        said="training goes on from the snapshot",
        loses=True,
        environ={"SNAPSHOT_EVERY": "4"},
    ),
    "the parameter server dies": Fault(["ps-0:SIGKILL:5"], ends=_PS, environ=_IMPATIENT),
    "the parameter server dies, and the disk for snapshots is full": Fault(
        ["ps-0:SIGKILL:10"], around="disk", ends=_PS
    ),
    "all workers die": Fault(
        ["worker-0:SIGKILL:5", "worker-1:SIGKILL:5"],
        ends=r"ConnectionError: All workers are lost for more than 5 s: worker 0 .*worker 1 ",
        environ=_IMPATIENT,
    ),
    "the chief dies": Fault(["chief-0:SIGKILL:5"], ends="killed"),
    "the network of a worker is cut": Fault(["worker-0:CUT:5"], "hosts", said=_LOST),
    "the network of a worker is cut for 45 s": Fault(
        ["worker-0:BREAK:5"],
        "hosts",
        said=_LOST + r"(.|\n)*tfdist: worker 0 \(.*\) is back",
        environ={"EPOCHS": "16", "SECONDS": "0.4"},
    ),
    "what a worker sends is lost": Fault(["worker-0:MUTE:5"], "hosts", said=_LOST),
    "a worker's link has 1 Mbit/s": Fault(["worker-0:LIMIT:5"], "hosts"),
    "the network of the parameter server is cut": Fault(
        ["ps-0:CUT:5"], "hosts", ends=_PS, environ=_IMPATIENT
    ),
    "the network of the parameter server is cut for 45 s": Fault(
        ["ps-0:BREAK:10"],
        "hosts",
        said="training goes on from the snapshot",
        loses=True,
        environ={"SNAPSHOT_EVERY": "4"},
    ),
    "what the parameter server sends is lost": Fault(
        ["ps-0:MUTE:5"], "hosts", ends=_PS, environ=_IMPATIENT
    ),
    "the parameter server's link has 1 Mbit/s": Fault(["ps-0:LIMIT:5"], "hosts"),
    "the network of the chief is cut": Fault(
        ["chief-0:CUT:5"], "hosts", ends="ConnectionError: ", environ=_IMPATIENT
    ),
}


@functools.cache
def _one_device(epochs: str) -> dict:
    """The result of one device."""
    with tempfile.TemporaryDirectory() as name:
        arguments = ("tests.faults.servers_job", name, SYNCHRONOUS)
        done = launch(pathlib.Path(name), *arguments, EPOCHS=epochs)
        assert done.returncode == 0, done.stderr
        return pickle.loads((pathlib.Path(name) / "result.pickle").read_bytes())


def inject(name: str, policy: str, folder: pathlib.Path) -> list[str]:
    """Lets a fault happen to a job, and checks what came of it: what the job does, and figures."""
    fault = FAULTS[name]
    with servers.servers(folder, policy, fault.around, **fault.environ) as job:
        status = job.train(fault.faults, DEADLINE)
        ended = time.monotonic()
        said = job.log()
        killed = {one.split(":")[0] for one in fault.faults if "SIGKILL" in one}
        for process, found in job.ends(OTHERS).items():
            assert found is not None, f"{process} has not ended after {OTHERS:g} s"
            if process != "chief-0":
                assert found == (-9 if process in killed else 0), f"{process} has status {found}"
        if not fault.ends:
            assert status == 0, said[-2000:]
            assert re.search(fault.said, said), said[-2000:]
            return _going_on(job.result(), fault, policy)
        seconds = f"{ended - job.happened:.1f}"
        if fault.ends == "killed":
            assert status == -9
            return ["ends with the chief", seconds, ""]
        assert status == 1, f"the chief has status {status}: {said[-2000:]}"
        last = said.rstrip().splitlines()[-1]
        assert re.match(fault.ends.replace("ADDRESS", re.escape(job.addresses["ps-0"])), last), last
        return [f"ends: `{' '.join(last.split()[:4])} ...`", seconds, ""]


def _going_on(result: dict, fault: Fault, policy: str) -> list[str]:
    """What came of training that has gone on, once it has been checked."""
    epochs = int(fault.environ.get("EPOCHS", "3"))
    updates = epochs * SAMPLES // BATCH
    lost = result["lost_updates"]
    assert result["iterations"] == result["version"] == updates - lost
    seconds = f"{result['seconds']:.1f}"
    if policy != SYNCHRONOUS:
        assert result["updates"] == updates - lost
        assert sum(result["seen"]) == BATCH * (updates - lost)
    if fault.loses:
        assert 0 < lost
        return [f"goes on; {lost} updates are lost", seconds, ""]
    assert lost == 0
    if policy != SYNCHRONOUS:
        assert result["seen"] == [epochs] * SAMPLES
        assert result["history"]["counted"] == [SAMPLES] * epochs
        return ["goes on", seconds, "exact"]
    expected = _one_device(str(epochs))
    for name, values in expected["history"].items():
        np.testing.assert_allclose(result["history"][name], values, rtol=1e-5)
    for ours, theirs in zip(result["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    return ["goes on", seconds, difference(result["weights"], expected["weights"])]


def rows(policy: str) -> Iterator[Row]:
    """A row for each fault, after one for none."""
    for name in FAULTS:
        yield Row(policy, name, functools.partial(inject, name, policy))
