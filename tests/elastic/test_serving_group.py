"""Launchers come to the one that serves, and it decides for the ranks of all machines."""

import concurrent.futures
import contextlib
import functools
import json
import select
import selectors
import signal
import socket
import time

import pytest

from tests.elastic.test_group import told
from tfdist.cluster.machines import Location
from tfdist.launcher import joining_group, serving_group
from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.launcher.hands import Hands
from tfdist.launcher.joining_group import JoiningGroup, OverError, welcomed
from tfdist.launcher.keeping import Keeping
from tfdist.launcher.members import elastic_member
from tfdist.launcher.outcome import TOO_FEW, Outcome
from tfdist.launcher.serving_group import ServingGroup
from tfdist.rendezvous.inbox import Inbox
from tfdist.rendezvous.reaching import RefusedError, connected
from tfdist.rendezvous.terms import Terms

SECRET = b"known to all launchers"
WAIT = 10  # seconds


class Launcher:
    """A launcher, and the ranks' ends of its connections, driven by hand.

    Args:
        group: its group.
        ranks: the numbers of its ranks.
        reducers: the numbers of its reducers.
    """

    def __init__(self, group, ranks, reducers=()):
        self.group = group
        self.said, self.killed, self.started, self.ends = [], [], [], []
        self.selector = selectors.DefaultSelector()
        end = lambda outcome, seconds: self.ends.append(outcome)  # noqa: E731
        hands = Hands(self.said.append, self.killed.append, self.start, end)
        group.open(self.selector, hands)
        self.ranks = {}
        for number in ranks:
            self.start(number, "rank")
        for number in reducers:
            self.start(number, "reducer")
        self.started.clear()

    def start(self, number, kind):
        self.started.append(number)
        _, (descriptor,) = self.group.connect(elastic_member(kind, number))
        rank = socket.socket(fileno=socket.dup(descriptor))
        rank.settimeout(WAIT)
        self.ranks[number] = rank.makefile("rwb", buffering=0)

    def pump(self):
        self.group.look(time.monotonic())
        for key, _ in self.selector.select(0.01):
            if not key.data.read():
                self.selector.unregister(key.fileobj)


class Job:
    """A launcher that serves, with two ranks, and others.

    Args:
        folder: for journals.
        **limits: how the job may change.
    """

    def __init__(self, folder, **limits):
        self.folder = folder
        self._held = contextlib.ExitStack()
        self._end = None
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.terms = self.terms_with("x")
        limits = ElasticLimits(**{"least": 1, "most": 4, "is_open": True, **limits})

        def variables(ranks):
            return [{"MACHINE": str(rank.machine)} for rank in ranks]

        group = ServingGroup(
            listener,
            self.terms,
            limits,
            variables,
            "127.0.0.1",
            Location(0, "lo"),
            str(folder / "serving"),
            Keeping(""),
        )
        self.launchers = [Launcher(group, [0, 1])]

    def terms_with(self, strategy):
        return Terms(self.address, SECRET, WAIT, {"--strategy": strategy}, lambda line: None)

    def come(self, count, terms=None, reducers=0):
        """Another launcher comes, and gets a place."""
        channel, answer = self.ask(count, terms, reducers)
        self.until(lambda: answer.done)
        place = answer.result()
        first = min(place.ranks + place.reducers)
        group = JoiningGroup(channel, str(self.folder / f"joining-{first}"), Keeping(""))
        self.launchers.append(Launcher(group, *place))
        return self.launchers[-1]

    def ask(self, count, terms=None, reducers=0):
        """Another launcher comes, and waits for a place in another thread."""
        terms = terms or self.terms
        channel = self.connect(terms)
        return channel, Answer(functools.partial(welcomed, channel, terms, count, reducers))

    def connect(self, terms):
        return self._held.enter_context(connected(terms))

    def until(self, condition):
        end = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < end
            for launcher in self.launchers:
                launcher.pump()

    def settle(self):
        """Everything that was sent is read."""
        end = time.monotonic() + 0.2
        self.until(lambda: time.monotonic() > end)

    def close(self):
        self.end(Outcome())
        self._held.close()
        self._end.result()

    def end(self, outcome):
        """The launcher that serves ends, in another thread."""
        if self._end is None:
            self._end = Answer(functools.partial(self.launchers.pop(0).group.concluded, outcome))

    # As in `tests.elastic.test_group.Job`, over all launchers.

    def hear(self, number):
        rank = self._rank(number)
        self.until(lambda: select.select([rank], [], [], 0)[0])
        return json.loads(rank.readline())

    def _rank(self, number):
        return next(one.ranks[number] for one in self.launchers if number in one.ranks)

    def say(self, number, kind, **details):
        line = json.dumps({"kind": kind, **details}).encode() + b"\n"
        self._rank(number).write(line)

    def ready(self, number, generation, **details):
        about = {"completed": 0, "takes_in": False, "writes": False, **details}
        self.say(number, "ready", generation=generation, address=f"host:{number}", **about)

    def form(self, numbers, generation, **details):
        for number in numbers:
            self.ready(number, generation - 1, **details)
        found = [told(self, number, "form")["formation"] for number in numbers]
        for number in numbers:
            self.say(number, "formed", generation=generation)
        assert [told(self, n, "go")["generation"] for n in numbers] == [generation] * len(numbers)
        return found


class Answer:
    """What a function comes to in another thread.

    Args:
        function: the function.
    """

    def __init__(self, function):
        self._future = concurrent.futures.ThreadPoolExecutor(1).submit(function)
        self.result = self._future.result

    @property
    def done(self):
        return self._future.done()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path, restarts=1)
    yield job
    job.close()


def test_ranks_of_all_machines_form_one_group(job):
    job.come(2)
    assert job.launchers[0].said == ["127.0.0.1 has come with ranks 2, 3"]
    found = job.form([0, 1, 2, 3], 1)
    assert [one["members"] for one in found] == [[0, 1, 2, 3]] * 4
    assert found[0]["addresses"] == [f"host:{number}" for number in range(4)]
    assert [one["variables"]["MACHINE"] for one in found] == ["0", "0", "1", "1"]
    assert [one["writes"] for one in found] == [True, False, True, False], "one on each machine"


def test_a_rank_of_another_machine_is_replaced_there(job):
    other = job.come(1)
    job.form([0, 1, 2], 1)
    other.group.ended(2, -9)
    job.until(lambda: other.started)
    assert other.started == [3]
    assert told(job, 0, "interrupt")["generation"] == 1
    found = job.form([0, 1], 2)
    assert found[0]["members"] == [0, 1]
    other.group.ended(3, -9)
    job.settle()
    assert other.started == [3], "only one may be replaced"


def test_reducers_of_all_machines_sum_for_the_next_group(job):
    job.form([0, 1], 1)
    other = job.come(0, reducers=2)
    assert job.launchers[0].said[-1] == "127.0.0.1 has come with reducers 2, 3"
    for number in (2, 3):
        job.ready(number, 0)
        job.settle()
    assert told(job, 0, "interrupt")["generation"] == 1
    for number in (0, 1):
        job.ready(number, 1)
    found = [told(job, number, "form")["formation"] for number in range(4)]
    assert [one["members"] for one in found] == [[0, 1]] * 4
    assert [one["reducers"] for one in found] == [[2, 3]] * 4
    assert found[0]["reducer_addresses"] == ["host:2", "host:3"]
    for number in range(4):
        job.say(number, "formed", generation=2)
    assert [told(job, number, "go")["generation"] for number in range(4)] == [2] * 4
    assert (
        job.launchers[0]
        .said[-1]
        .startswith(
            "reducer 2 joins; reducer 3 joins; training goes on with ranks 0, 1 and reducers 2, 3"
        )
    )
    other.group.ended(2, -9)
    job.until(lambda: other.started)
    assert other.started == [4], "another reducer is started there"
    job.until(lambda: job.launchers[0].said[-1] == "reducer 4 is started in the place of reducer 2")
    found = job.form([0, 1, 3], 3)
    assert [one["reducers"] for one in found] == [[3]] * 3
    other.group._channel.close()
    told(job, 0, "interrupt")
    assert job.form([0, 1], 4)[0]["reducers"] == []


def test_one_with_reducers_only_needs_no_place(job):
    job.come(2)
    assert job.come(0, reducers=1).ranks.keys() == {4}


def test_who_comes_later_follows_and_its_launcher_copies_the_journal(job):
    job.form([0, 1], 1)
    (job.folder / "serving").write_bytes(b"".join(entry(b"x" * n) for n in (3, 4, 5)))
    other = job.come(1)
    job.ready(2, 0)
    assert told(job, 2, "form")["formation"]["is_apart"]
    path = job.folder / "joining-2"
    job.until(lambda: path.read_bytes() == entry(b"xxx") + entry(b"xxxx"))
    job.say(2, "near")
    for number in (0, 1):
        assert told(job, number, "take_in")
        job.ready(number, 1, completed=3, takes_in=True, writes=number == 0)
    assert told(job, 2, "meet")["completed"] == 3
    job.until(lambda: path.read_bytes() == (job.folder / "serving").read_bytes())
    job.ready(2, 0, completed=3)
    found = told(job, 2, "form")["formation"]
    assert (found["joining"], found["writes"]) == ([2], True)
    assert other.group.pause < 1
    job.say(2, "joined")
    job.until(lambda: other.group.pause > 1)  # it copies no more
    path.write_bytes(path.read_bytes() + entry(b"the rank writes"))
    written = path.read_bytes()
    late = {"after": 3, "offset": 0, "data": "", "why": ""}
    next(iter(job.launchers[0].group._machines.values())).send("piece", source=0, piece=late)
    job.settle()
    assert path.read_bytes() == written, "an answer that comes too late changes nothing"


def entry(data):
    return len(data).to_bytes(8, "little") + data


def test_a_machine_is_lost_with_its_launcher(job):
    other = job.come(2)
    job.form([0, 1, 2, 3], 1)
    other.group._channel.close()
    told(job, 0, "interrupt")
    job.form([0, 1], 2)
    line = job.launchers[0].said[-1]
    assert "rank 2 was lost, as its launcher on 127.0.0.1 is gone; rank 3 was lost" in line
    assert other.started == [], "nobody is there to start another"


def test_too_few_ranks_wait_for_other_machines(tmp_path):
    job = Job(tmp_path, least=3, patience=0.1)
    other = job.come(1)
    job.form([0, 1, 2], 1)
    other.group._channel.close()
    told(job, 0, "interrupt")
    for number in (0, 1):
        job.ready(number, 1, completed=3, takes_in=True, writes=number == 0)
    serving = job.launchers[0].group
    assert not serving.shortage
    job.until(lambda: serving.is_overdue(time.monotonic()))
    assert "fewer than 3 ranks (--min) were there for 0.1 s" in serving.shortage
    job.close()


def test_nobody_waits_when_no_rank_is_left(tmp_path):
    job = Job(tmp_path, least=1)
    other = job.come(1)
    job.form([0, 1, 2], 1)
    for number in (0, 1):
        assert job.launchers[0].group.ended(number, -9)
    assert job.launchers[0].group.awaits_others
    other.group._channel.close()
    job.until(lambda: job.launchers[0].ends)
    assert job.launchers[0].ends[0].status == TOO_FEW
    assert not job.launchers[0].group.awaits_others
    job.close()


def test_a_rank_that_fails_ends_the_job_on_all_machines(job):
    other = job.come(1)
    job.form([0, 1, 2], 1)
    assert other.group.ended(2, 7), "the launcher that serves decides"
    job.until(lambda: job.launchers[0].ends)
    (end,) = job.launchers[0].ends
    assert end.status == 7
    assert end.message.startswith("on 127.0.0.1, rank 2 ended with exit status 7")
    job.launchers[0].group.end_others(end)
    job.until(lambda: other.ends)
    other.group.end()
    assert other.group.awaits_others, "the outcome is to come"
    job.end(end)
    job.until(lambda: not other.group.awaits_others)
    assert other.group.concluded(Outcome(1, "")) == Outcome(7, end.message)


def test_one_that_is_asked_to_end_waits_for_nobody(job):
    other = job.come(1)
    assert other.group.awaits_others
    other.group.end()
    assert not other.group.awaits_others
    assert other.group.concluded(Outcome(143, "ended")) == Outcome(143, "ended")


def test_a_launcher_ends_with_the_one_that_serves(job):
    other = job.come(1)
    job.end(Outcome())
    job.until(lambda: other.ends)
    assert other.group.concluded(Outcome()).status == 0, "that one had ended well"
    lost = Job(job.folder)
    other = lost.come(1)
    next(iter(lost.launchers[0].group._machines)).close()
    lost.until(lambda: other.ends)
    assert told(lost, 2, "quit")
    assert other.group.concluded(Outcome()).status == TOO_FEW
    lost.close()


def test_who_finds_no_place_waits_for_one(job):
    other = job.come(1)
    assert job.come(1).ranks
    channel, answer = job.ask(2)
    job.settle()
    assert not answer.done
    assert "has come, and waits for a place (--max)" in job.launchers[0].said[-1]
    other.group.ended(2, 0)
    job.until(lambda: answer.done)
    assert answer.result().ranks == [4], "there is room for one of the two"
    channel.close()


def test_who_waits_for_a_place_is_told_of_the_end(job):
    assert job.come(2).ranks
    channel, answer = job.ask(1)
    job.settle()
    job.end(Outcome(7, "a rank has failed"))
    with pytest.raises(OverError) as error:
        answer.result(WAIT)
    assert error.value.outcome == Outcome(7, "a rank has failed")
    channel.close()


def test_who_was_given_something_else_is_refused(job):
    channel, answer = job.ask(1, job.terms_with("y"))
    job.until(lambda: answer.done)
    with pytest.raises(RefusedError, match="the same --strategy. Received: 'x' on 127.0.0.1, and"):
        answer.result()
    channel.close()


def test_who_comes_too_late_is_refused(job):
    job.form([0, 1], 1)
    for number in (0, 1):
        job.say(number, "done")
    channel, answer = job.ask(1)
    job.until(lambda: answer.done)
    with pytest.raises(RefusedError, match="is about to end"):
        answer.result()
    channel.close()


def test_what_no_launcher_says_closes_the_connection(job):
    for message in ({}, {"machine": None}, {"machine": {"host": "x"}, "terms": 5}, ["x"], 5):
        channel = job.connect(job.terms)
        channel.send(message)
        inbox = Inbox()
        inbox.listen(channel)
        gone = []
        job.until(lambda inbox=inbox, gone=gone: gone.extend(inbox.taken()) or gone)
        assert gone[-1][1] is None
    assert job.launchers[0].said == []


def test_a_machine_that_leaves_is_not_given_new_ranks_and_fails_nobody(job):
    other = job.come(2)
    job.form([0, 1, 2, 3], 1)
    assert other.group.passed_on(signal.SIGINT) == signal.SIGTERM
    other.group.end()
    other.group.ended(2, -9)
    other.group.ended(3, 7)  # its own handler of the signal
    told(job, 0, "interrupt")
    job.form([0, 1], 2)
    assert (other.started, job.launchers[0].ends) == ([], [])
    assert max(job.launchers[0].group._ranks) == 3, "nor are they counted as started"
    assert "rank 3 ended with exit status 7, as its launcher was asked" in job.launchers[0].said[-1]


def test_a_rank_that_comes_too_late_is_not_started(job):
    other = job.come(1)
    job.form([0, 1, 2], 1)
    other.group.ended(2, -9)
    other.group.end()
    job.until(lambda: 3 in job.launchers[0].group._ranks)
    job.until(lambda: job.launchers[0].group._ranks[3].state == "gone")
    assert other.started == []


def test_a_launcher_that_is_silent_is_lost(job, monkeypatch):
    monkeypatch.setattr(serving_group, "_SILENCE", 0.5)
    monkeypatch.setattr(joining_group, "_SIGNS", 0.1)
    other = job.come(1)
    job.form([0, 1, 2], 1)
    end = time.monotonic() + 1
    job.until(lambda: time.monotonic() > end)
    assert job.launchers[0].said == ["127.0.0.1 has come with rank 2"], "it gives signs of life"
    job.launchers.remove(other)  # it is stopped
    job.until(lambda: "is silent for 0.5 s" in job.launchers[0].said[-1])
    told(job, 0, "interrupt")


def test_one_that_is_asked_to_end_twice_waits_for_nobody(job):
    job.come(1)
    job.form([0, 1, 2], 1)
    serving = job.launchers[0].group
    for number in (0, 1):
        serving.ended(number, -9)
    serving.end_others(None)
    assert serving.awaits_others
    serving.hurry()
    assert not serving.awaits_others


def test_who_is_gone_before_the_answer_ends_nothing(job):
    for terms, count in ((job.terms_with("y"), 1), (job.terms, 3)):
        channel, _ = job.ask(count, terms)
        time.sleep(0.2)  # it has greeted
        channel.close()
    job.settle()
    assert job.come(1).ranks


def test_a_replaced_rank_counts_before_those_who_wait(tmp_path):
    job = Job(tmp_path, most=3, restarts=1)
    other = job.come(1)
    job.form([0, 1, 2], 1)
    channel, answer = job.ask(1)
    job.settle()
    other.group.ended(2, -9)
    job.until(lambda: other.started)
    job.settle()
    assert not answer.done
    channel.close()
    job.close()


def test_connections_that_say_nothing_keep_nobody_out(job):
    host, port = job.address.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(200)]
    begun = time.monotonic()
    assert job.come(1).ranks
    assert time.monotonic() - begun < 8, "they need not be waited for"
    idle[0].settimeout(5)  # less than the time for a greeting
    assert idle[0].makefile("rb").read() != b"", "it is closed after the number it was greeted with"
    for connection in idle:
        connection.close()


def test_a_machine_that_is_lost_with_the_last_rank_ends_the_job(job):
    other = job.come(1)
    job.form([0, 1, 2], 1)
    job.say(0, "done")
    for number in (1, 0):
        job.launchers[0].group.ended(number, 0 if number == 0 else -9)
    told(job, 2, "interrupt")
    other.group._channel.close()
    job.until(lambda: job.launchers[0].ends)
    assert job.launchers[0].ends[0].status == 75 or job.launchers[0].ends[0].status == 137
