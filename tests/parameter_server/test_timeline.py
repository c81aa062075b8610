"""Timeline under parameter servers: what workers, the chief and the servers do in some steps."""

import collections
import json
import os
import statistics
import subprocess
import sys

import pytest

from tests.parameter_server.timeline_job import COUNTED, EQUAL, PAUSE, STEPS

_US = 1e6  # microseconds in a second
PARTS = ["pull", "wait for data", "compute", "encode", "push"]
RANGE = set(range(*STEPS))
# Workers, parameter servers, and ways; and of these the ones that are not `full`.
JOBS = {
    (2, 1): ["own", "synchronous", "chief", "compressed", "dynamic", "accumulated", "recorded"],
    (2, 2): ["own", "chief", "synchronous"],
    (1, 1): [name for name in EQUAL if name.startswith("one worker")],
}
QUICK = {"own", "synchronous", "one worker", "limits"}


def run(folder, workers, servers, *ways):
    command = [sys.executable, "-m", "tests.parameter_server.timeline_job", str(folder)]
    done = subprocess.run(
        [*command, str(workers), str(servers), *ways],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "found.json").exists(), done.stderr[-5000:]
    return json.loads((folder / "found.json").read_text())


def _cases(ways):
    for job, names in JOBS.items():
        for way in names:
            if way in ways:
                quick = job != (2, 2) and way in QUICK
                group = pytest.mark.xdist_group(f"timeline {job} {quick}")
                marks = [group] if quick else [group, pytest.mark.full]
                yield pytest.param(job, way, marks=marks, id=f"{job[0]}-{job[1]}-{way}")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `results(job, way)` returns: the result of the way; a job runs once."""
    found = {}

    def of(job, way):
        ways = [name for name in JOBS[job] if (name in QUICK) == (way in QUICK)]
        key = job, way in QUICK
        if key not in found:
            found[key] = run(tmp_path_factory.mktemp("timeline"), *job, *ways)
        return found[key][way]

    return of


class Trace:
    """The spans of a file by process, in their order."""

    def __init__(self, content):
        self.metadata = content["metadata"]
        self.tolerance = 2 * _US * self.metadata["largest_clock_error_seconds"] + 2
        events = content["traceEvents"]
        kinds = [event for event in events if event["name"] == "process_name"]
        self.names = [event["args"]["name"] for event in kinds]
        assert [event["pid"] for event in kinds] == [*range(len(kinds))]
        self.spans = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                self.spans[self.names[event["pid"]], event["name"]].append(event)

    def of(self, process, name):
        return sorted(self.spans[process, name], key=lambda event: event["ts"])

    def steps(self, worker):
        """For each step of a worker, the spans by name."""
        for step in self.of(f"worker {worker}", "step"):
            number = step["args"]["step"]
            spans = {"step": step}
            for name in PARTS:
                for event in self.of(f"worker {worker}", name):
                    if step["ts"] <= event["ts"] and end(event) <= end(step) + 1:
                        assert event["args"]["step"] == number and name not in spans
                        spans[name] = event
            yield number, spans


def end(event):
    return event["ts"] + event["dur"]


def check_steps(trace, workers):
    """Steps follow each other, and so do the parts of a step, without a gap."""
    for worker in range(workers):
        before = 0.0
        for _, spans in trace.steps(worker):
            step = spans.pop("step")
            assert {"pull", "compute"} <= spans.keys()
            assert list(spans) == sorted(spans, key=PARTS.index)
            own = [*spans.values()]
            assert own[0]["ts"] == step["ts"] >= before - trace.tolerance
            for first, second in zip(own, own[1:]):
                assert abs(end(first) - second["ts"]) < 1
            assert abs(end(own[-1]) - end(step)) < 1
            before = end(step)
    error = trace.metadata["largest_clock_error_seconds"]
    assert 0 < error < 0.02  # 1 ms on a machine with time to answer
    offsets = trace.metadata["clock_offset_seconds"]
    assert len(offsets) == len(trace.names)
    assert all(abs(offset) <= error for offset in offsets)  # one machine, one clock
    assert trace.metadata["steps"] == [*STEPS]


def check_counted(found, own):
    """Every step is there once, with the worker and the staleness that the weights tell of."""
    trace = Trace(found["trace"])
    check_steps(trace, 2)
    updates = trace.of("ps 0" if own else "chief", "update")
    assert not trace.of("chief" if own else "ps 0", "update")
    assert [update["args"]["step"] for update in updates] == sorted(RANGE)
    for first, second in zip(updates, updates[1:]):
        assert end(first) <= second["ts"] + 1
    steps = {number: (w, spans) for w in (0, 1) for number, spans in trace.steps(w)}
    assert steps.keys() == RANGE
    assert {worker for worker, _ in steps.values()} == {0, 1}
    for update in updates:
        number = update["args"]["step"]
        worker, spans = steps[number]
        assert update["args"]["worker"] == worker == found["workers"][number]
        assert update["args"]["staleness"] == found["staleness"][number]
        if own:
            assert update["ts"] >= spans["push"]["ts"] - trace.tolerance
            assert end(update) <= end(spans["push"]) + trace.tolerance
        else:
            assert update["ts"] >= end(spans["push"]) - trace.tolerance
    slow = [spans["compute"]["dur"] for worker, spans in steps.values() if worker == 1]
    fast = [spans["compute"]["dur"] for worker, spans in steps.values() if worker == 0]
    assert min(slow) > PAUSE * _US
    assert statistics.median(fast) < statistics.median(slow)
    assert found["seen"] == [2] * len(found["seen"])


@pytest.mark.parametrize(("job", "way"), list(_cases(COUNTED)))
def test_each_step_is_there_with_its_worker_and_its_staleness(results, job, way):
    found = results(job, way)
    assert (found["why chief"] is None) == (way == "own")
    check_counted(found, way == "own")


@pytest.mark.parametrize(("job", "way"), list(_cases(EQUAL)))
def test_weights_are_those_without_it(results, job, way):
    found = results(job, way)
    assert found["difference"] == 0.0
    assert not found["still asked"]
    timed, usual = found["times"]
    assert 0 in timed and max(timed) > 0
    assert set(usual) == {0}


@pytest.mark.parametrize(("job", "way"), list(_cases(EQUAL)))
def test_all_workers_of_a_step_and_its_update_are_there(results, job, way):
    found = results(job, way)
    own = found["why chief"] is None
    trace = Trace(found["trace"])
    check_steps(trace, job[0])
    per_update = 2 if EQUAL[way].get("accumulation_steps") else 1
    updates = trace.of("ps 0" if own else "chief", "update")
    assert [update["args"]["step"] for update in updates] == [
        number for number in sorted(RANGE) if (number + 1) % per_update == 0
    ]
    parts = {"pull", "compute", "push"} | ({"encode"} if "compression" in EQUAL[way] else set())
    steps = [step for worker in range(job[0]) for step in trace.steps(worker)]
    # A worker that is free may compute two parts of a global batch.
    assert collections.Counter(number for number, _ in steps) == dict.fromkeys(RANGE, job[0])
    by_step = {update["args"]["step"]: update for update in updates}
    for number, spans in steps:
        if number in by_step:
            assert parts <= spans.keys()
            if not own:
                assert end(spans["push"]) <= by_step[number]["ts"] + trace.tolerance


def test_what_cannot_be_traced_is_refused_and_a_failure_ends_it(tmp_path):
    found = run(tmp_path, 2, 1, "limits")["limits"]
    assert "Only one tfdist.callbacks.Timeline at a time" in found["two"]
    assert "must be a file that can be written, in a folder" in found["nowhere"]
    assert "Received: steps_per_execution=2" in found["several"]
    assert found["no step was made"] == [0, 0]
    assert not found["after a failure"]
    content, told = found["short"]
    assert len(told) == 1 and "training ended before step 8" in told[0]
    assert content["metadata"]["steps"] == [2, 8]
    made = [number for worker in (0, 1) for number, _ in Trace(content).steps(worker)]
    assert sorted(made) == sorted([*range(2, 8)] * 2)
    assert found["asked"] == [True] * 5 + [False] * 3


@pytest.mark.full
def test_it_works_with_processes(start, tmp_path):
    job = "tests.parameter_server.timeline_job"
    processes, _ = start(2, 1, "2", "1", "own", job=job)
    assert processes["chief", 0].wait(300) == 0, (tmp_path / "chief-0.log").read_text()
    found = json.loads((tmp_path / "found.json").read_text())["own"]
    assert found["why chief"] is None
    check_counted(found, own=True)
