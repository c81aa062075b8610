"""The launcher's side of an elastic group: when groups are formed, and who may leave."""

import json
import selectors
import socket
import time
import types

import pytest

from tfdist.cluster.machines import Location
from tfdist.environment import ELASTIC
from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.launcher.group import Group
from tfdist.launcher.hands import Hands
from tfdist.launcher.keeping import Keeping
from tfdist.launcher.members import elastic_member, members
from tfdist.launcher.processes import Processes

AND_ONE_IS_LEFT = (
    "rank {} was killed by SIGKILL (9; the kernel does that when memory runs out); 1 rank is left, "
    "and the job needs {} (--min), so it was ended; start it again"
)


class Job:
    """A group and the ranks' ends of its connections, driven by hand.

    Args:
        count: the number of ranks.
        least: how few may be left.
        **options: how the job may change; and `journal`.
    """

    def __init__(self, count, least, journal="", **options):
        self.said = []
        self.selector = selectors.DefaultSelector()
        self.killed = []

        def variables(ranks):
            return [{"SIZE": str(len(ranks))} for _ in ranks]

        limits = ElasticLimits(least, **options)
        self.keeping = Keeping(limits.backup_dir)
        self.group = Group(
            limits, variables, "10.0.0.1", Location(0, "eth0"), journal, self.keeping
        )
        self.group.open(self.selector, Hands(self.said.append, self.killed.append, None, None))
        self.sockets, self.ranks = [], []
        for member in members(count):
            self.start(member)

    def start(self, member, **options):
        variables, (descriptor,) = self.group.connect(member, **options)
        assert variables[ELASTIC] == f"{descriptor}:{member.number}"
        rank = socket.socket(fileno=socket.dup(descriptor))
        rank.settimeout(2)
        self.sockets.append(rank)
        self.ranks.append(rank.makefile("rwb", buffering=0))

    def say(self, number, kind, **details):
        self.ranks[number].write(json.dumps({"kind": kind, **details}).encode() + b"\n")
        while ready := self.selector.select(0):
            for key, _ in ready:
                key.data.read()

    def ready(self, number, generation, completed=0, takes_in=False, writes=False):
        where = {"generation": generation, "address": f"host:{number}"}
        self.say(number, "ready", **where, completed=completed, takes_in=takes_in, writes=writes)

    def hear(self, number):
        return json.loads(self.ranks[number].readline())

    def form(self, numbers, generation):
        """All of `numbers` form a group; returns what each was told."""
        for number in numbers:
            self.ready(number, generation - 1)
        found = [told(self, number, "form")["formation"] for number in numbers]
        for number in numbers:
            self.say(number, "formed", generation=generation)
        assert [self.hear(n) for n in numbers] == [{"kind": "go", "generation": generation}] * len(
            numbers
        )
        return found


def told(job, number, kind):
    """What a rank is told next of a kind."""
    while (message := job.hear(number))["kind"] != kind:
        pass
    return message


@pytest.fixture
def job():
    found = Job(3, 2)
    found.form([0, 1, 2], 1)
    return found


def test_all_are_told_who_is_in_the_group():
    first, *others = Job(2, 1).form([0, 1], 1)
    assert first.pop("writes") and not any(other.pop("writes") for other in others)
    assert others == [first]
    assert first["members"] == [0, 1]
    assert first["addresses"] == ["host:0", "host:1"]
    assert first["variables"] == {"SIZE": "2"}
    assert first["leaving"] == []


def test_a_group_waits_for_all_ranks():
    job = Job(2, 1)
    job.ready(0, 0)
    with pytest.raises(TimeoutError):
        job.sockets[0].recv(1)
    job.ready(1, 0)
    assert job.hear(0)["kind"] == "form"


def test_the_others_are_freed_and_go_on_when_a_rank_dies(job):
    assert job.group.ended(1, -9)
    for number in (0, 2):
        assert job.hear(number) == {"kind": "interrupt", "generation": 1}
    told = job.form([0, 2], 2)
    assert told[0]["members"] == [0, 2]
    (line,) = job.said
    assert line.startswith("rank 1 was killed by SIGKILL (9")
    assert "training goes on with ranks 0, 2, after 0." in line


def test_a_death_while_a_group_is_formed():
    job = Job(4, 1)
    for number in range(4):
        job.ready(number, 0)
    for number in range(4):
        job.hear(number)
    job.say(0, "formed", generation=1)
    assert job.group.ended(3, -9)
    for number in range(3):
        assert job.hear(number) == {"kind": "interrupt", "generation": 1}
    assert [told["members"] for told in job.form([0, 1, 2], 2)] == [[0, 1, 2]] * 3


def test_too_few_are_left(job):
    assert job.group.ended(0, -9)
    assert not job.group.ended(1, -9)
    assert job.group.shortage.startswith(AND_ONE_IS_LEFT.format(1, 2))


def test_a_script_that_fails_is_no_loss(job):
    assert not job.group.ended(1, 1)


def test_who_leaves_hands_over_its_state_first(job):
    job.say(1, "leaving")
    for number in range(3):
        assert job.hear(number) == {"kind": "interrupt", "generation": 1}
    told = job.form([0, 1, 2], 2)
    assert [one["leaving"] for one in told] == [[1]] * 3
    assert not job.said
    for number in range(3):
        job.say(number, "settled", generation=2)
    for number in range(3):
        assert job.hear(number) == {"kind": "settled", "generation": 2}
    job.say(1, "left")
    assert job.group.ended(1, 0)
    assert [one["members"] for one in job.form([0, 2], 3)] == [[0, 2]] * 2
    (line,) = job.said
    assert line.startswith("rank 1 was asked to leave; training goes on with ranks 0, 2")


def test_who_has_left_is_in_no_group_any_more(job):
    job.say(1, "leaving")
    job.form([0, 1, 2], 2)
    job.say(1, "left")
    job.ready(1, 2)
    assert told(job, 1, "quit")
    assert [one["members"] for one in job.form([0, 2], 3)] == [[0, 2]] * 2
    assert job.group.ended(1, -15)


def test_who_cannot_be_missed_is_told_to_quit(job):
    job.say(1, "leaving")
    job.say(2, "leaving")
    kinds = [job.hear(2)["kind"] for _ in range(2)]
    assert kinds == ["interrupt", "quit"]


def test_whoever_leaves_a_group_by_itself_takes_the_others_out(job):
    job.ready(0, 1)
    for number in (1, 2):
        assert job.hear(number) == {"kind": "interrupt", "generation": 1}


def test_messages_of_a_group_that_is_no_more_mean_nothing(job):
    job.group.ended(1, -9)
    job.ready(0, 1)
    job.ready(2, 1)
    while job.hear(0)["kind"] != "form":
        pass
    while job.hear(2)["kind"] != "form":
        pass
    job.say(0, "formed", generation=1)
    job.say(2, "formed", generation=2)
    job.say(0, "formed", generation=2)
    assert job.hear(0) == {"kind": "go", "generation": 2}


def test_ranks_end_together(job):
    for number in range(3):
        job.say(number, "done")
    for number in range(3):
        assert job.hear(number) == {"kind": "end", "generation": 1}


def test_one_that_is_done_is_no_loss(job):
    job.say(0, "done")
    assert job.group.ended(0, 0)
    assert not job.said


def test_ranks_that_are_done_are_still_there(job):
    job.say(0, "done")
    job.say(2, "done")
    assert job.group.ended(1, -9)


def test_a_rank_that_dies_before_the_first_group_is_named():
    job = Job(3, 1)
    assert job.group.ended(1, -9)
    job.form([0, 2], 1)
    (line,) = job.said
    assert line.startswith("rank 1 was killed by SIGKILL")


def test_what_a_dead_rank_has_said_is_not_listened_to(job):
    job.group.ended(0, -9)
    line = json.dumps({"kind": "ready", "generation": 1, "address": ""})
    job.ranks[1].write(line.encode() + b"\n")
    assert job.group.ended(1, -9) is False  # only one is left, of at least two
    job.ready(2, 1)
    assert job.hear(2) == {"kind": "interrupt", "generation": 1}
    assert job.hear(2)["formation"]["members"] == [2]


def test_a_rank_that_leaves_does_not_count_when_another_one_dies(job):
    job.say(0, "leaving")
    assert not job.group.ended(1, -9)


def test_the_first_rank_is_missed_though_the_others_are_done(job):
    job.say(1, "done")
    job.say(2, "done")
    assert not job.group.ended(0, -9)


def test_while_the_job_ends_nobody_is_waited_for(job):
    job.group.end()
    assert not job.group.ended(1, -9)
    job.say(2, "leaving")
    assert job.hear(2) == {"kind": "quit"}


# --- ranks that are replaced --------------------------------------------------------------------


def with_new_rank(count, least, lost=1, **options):
    """A job in whose first group one rank is lost; a new one is started in its place."""
    job = Job(count, least, journal="journal", **{"restarts": 1, **options})
    job.form(list(range(count)), 1)
    assert job.group.ended(lost, -9)
    assert job.group.replaces(lost, -9)
    job.start(members(count + 1)[count])
    return job


@pytest.fixture
def waiting():
    """Of two ranks one is lost, and the other one waits before step 7 for a third one."""
    job = Job(2, 2, restarts=2, patience=10, journal="journal")
    job.form([0, 1], 1)
    assert job.group.ended(1, -9)
    assert job.hear(0)["kind"] == "interrupt"
    job.ready(0, 1, completed=6)
    formation = job.hear(0)["formation"]
    assert formation["members"] == [0]
    assert formation["waiting"]
    job.say(0, "formed", generation=2)
    assert job.hear(0)["kind"] == "go"
    job.ready(0, 2, completed=7, takes_in=True, writes=True)
    assert job.hear(0) == {"kind": "interrupt", "generation": 2}
    assert job.group.replaces(1, -9)
    job.start(members(3)[2])
    job.ready(2, 0)
    return job


def test_a_new_rank_is_alone_at_first(waiting):
    formation = waiting.hear(2)["formation"]
    assert formation["is_apart"]
    assert (formation["members"], formation["variables"]) == ([2], {"SIZE": "1"})


def test_the_others_wait_for_a_new_rank_that_is_near(waiting):
    waiting.hear(2)
    waiting.say(2, "near")
    assert waiting.hear(2) == {"kind": "meet", "completed": 7}
    waiting.ready(2, 0, completed=7)
    for number in (0, 2):
        formation = waiting.hear(number)["formation"]
        assert (formation["members"], formation["joining"]) == ([0, 2], [2])
        assert not formation["waiting"]
    for number in (0, 2):
        waiting.say(number, "formed", generation=3)
    waiting.say(2, "joined")
    assert "rank 2 joins; training goes on with ranks 0, 2" in waiting.said[-1]
    assert not waiting.group.is_overdue(1e9)


def test_ranks_that_are_too_few_do_not_wait_for_ever(waiting):
    assert not waiting.group.is_overdue(0)
    assert waiting.group.is_overdue(1e9)
    assert "--rejoin-timeout" in waiting.group.shortage


def test_a_new_rank_that_is_killed_is_replaced_too(waiting):
    assert waiting.group.ended(2, -9)
    assert "before it had joined" in waiting.said[-1]
    assert waiting.group.replaces(2, -9)
    waiting.start(members(4)[3])
    assert not waiting.group.replaces(3, -9)


def test_a_new_rank_that_fails_is_not_replaced(waiting):
    assert not waiting.group.ended(2, 1)
    assert waiting.group.shortage


def test_a_job_that_has_enough_ranks_needs_no_new_one():
    job = with_new_rank(3, 1)
    job.ready(3, 0)
    assert job.group.ended(3, 1)
    assert not job.group.shortage


def test_ranks_in_training_are_asked_to_come_back_for_a_new_one():
    job = Job(2, 1, restarts=1, journal="journal")
    job.form([0, 1], 1)
    job.start(members(3)[2])
    job.ready(2, 0)
    job.say(2, "near")
    assert [job.hear(number)["kind"] for number in (0, 1)] == ["take_in"] * 2
    job.ready(0, 1, completed=5, takes_in=True, writes=True)
    job.hear(1)
    job.ready(1, 1, completed=4)
    formation = job.hear(0)
    while formation["kind"] != "form":
        formation = job.hear(0)
    assert formation["formation"]["members"] == [0, 1]
    assert formation["formation"]["waiting"]


def test_nobody_reads_on_until_the_first_rank_has_written(waiting):
    waiting.hear(2)
    waiting.ready(0, 2, completed=7, takes_in=True)
    waiting.say(2, "near")
    assert waiting.hear(0)["formation"]["members"] == [0]


def test_new_ranks_are_killed_when_all_others_are_done(waiting):
    waiting.say(0, "done")
    assert waiting.killed == [2]


def test_a_rank_that_is_done_counts_as_there():
    job = Job(2, 2, restarts=1, journal="journal")
    job.form([0, 1], 1)
    job.say(1, "done")
    job.ready(0, 1)
    assert job.hear(0)["kind"] == "interrupt"
    assert job.hear(0)["formation"]["members"] == [0]


@pytest.fixture
def joining():
    """Ranks 0 and 1, of which rank 2 is lost, and rank 3, which forms a group with them."""
    job = with_new_rank(3, 1, lost=2, restarts=2)
    job.form([0, 1], 2)
    job.ready(3, 0)
    job.say(3, "near")
    job.ready(0, 2, completed=7, takes_in=True, writes=True)
    job.ready(1, 2, completed=7, takes_in=True)
    assert told(job, 3, "meet")["completed"] == 7
    job.ready(3, 0, completed=7, takes_in=True)
    for number in (0, 1, 3):
        assert told(job, number, "form")["formation"]["joining"] == [3]
    return job


def test_a_rank_may_leave_while_another_one_joins(joining):
    joining.say(0, "formed", generation=3)
    joining.say(1, "leaving")
    for number in (0, 1, 3):
        joining.ready(number, 3, completed=7, takes_in=True, writes=number == 0)
    for number in (0, 1):
        formation = told(joining, number, "form")["formation"]
        assert (formation["members"], formation["leaving"]) == ([0, 1], [1])
    for number in (0, 1):
        joining.say(number, "formed", generation=4)
    assert [told(joining, number, "go")["generation"] for number in (0, 1)] == [4, 4]
    for number in (0, 1):
        joining.say(number, "settled", generation=4)
    assert told(joining, 1, "settled")
    joining.say(1, "left")
    joining.ready(0, 4, completed=7, takes_in=True, writes=True)
    assert told(joining, 0, "form")["formation"]["members"] == [0, 3]


def test_the_first_rank_may_die_while_another_one_joins(joining):
    assert joining.group.ended(0, -9)
    for number in (1, 3):
        joining.ready(number, 3, completed=7, takes_in=True)
    for number in (1, 3):
        assert told(joining, number, "form")["formation"]["joining"] == [3]


def test_a_new_rank_that_is_refused_does_not_hold_the_others_up(joining):
    for number in (0, 1, 3):
        joining.say(number, "formed", generation=3)
    joining.say(3, "left")
    for number in (0, 1):
        joining.ready(number, 3, completed=7, takes_in=True, writes=number == 0)
    assert told(joining, 0, "form")["formation"]["members"] == [0, 1]
    assert joining.group.ended(3, 1)
    assert joining.said[-1] == "rank 3 ended with exit status 1 before it had joined the others"


def test_a_job_that_has_ended_well_does_not_lack_ranks():
    job = with_new_rank(3, 3)
    job.say(0, "done")
    job.say(2, "done")
    assert job.killed[-1] == 3
    assert job.group.ended(3, -9)
    assert not job.group.shortage


def test_nobody_waits_where_enough_can_never_come():
    job = with_new_rank(3, 3)
    assert not job.group.ended(2, -9)
    assert job.group.shortage.startswith(AND_ONE_IS_LEFT.format(2, 3))


def test_new_ranks_join_in_the_order_of_their_numbers():
    job = Job(3, 1, restarts=2, journal="journal")
    job.form([0, 1, 2], 1)
    for lost, number in ((1, 3), (2, 4)):
        assert job.group.ended(lost, -9)
        assert job.group.replaces(lost, -9)
        job.start(members(5)[number])
    job.form([0], 2)
    job.ready(3, 0)
    job.ready(4, 0)
    job.say(4, "near")
    job.ready(0, 2, completed=5, takes_in=True, writes=True)
    assert told(job, 0, "form")["formation"]["members"] == [0]  # rank 3 is far, so 4 waits
    job.say(0, "formed", generation=3)
    job.say(3, "near")
    assert told(job, 0, "take_in")
    job.ready(0, 3, completed=6, takes_in=True, writes=True)
    assert [told(job, number, "meet")["completed"] for number in (3, 4)] == [6, 6]


def test_ranks_that_wait_are_told_to_quit_at_the_end_of_the_job(waiting):
    waiting.group.end()
    assert told(waiting, 0, "quit")


def test_time_in_which_ranks_work_is_no_waiting():
    job = Job(2, 2, restarts=1, patience=10, journal="journal")
    job.form([0, 1], 1)
    assert job.group.ended(1, -9)
    assert job.group.replaces(1, -9)
    job.ready(0, 1, completed=6)
    assert told(job, 0, "form")["formation"]["waiting"]
    assert not job.group.is_overdue(1e9)


@pytest.fixture
def spared():
    """Of two ranks one may be replaced, by one that waits to be called."""
    job = Job(2, 1, restarts=1, spares=2, patience=10, journal="journal")
    assert not job.group.lacks_spare
    job.form([0, 1], 1)
    assert job.group.lacks_spare
    job.start(members(3)[2], is_spare=True)
    assert not job.group.lacks_spare, "more than may be replaced"
    return job


def test_one_that_waits_takes_the_place_of_a_lost_rank(spared):
    assert spared.group.ended(1, -9)
    spared.ready(0, 1, completed=6, takes_in=True, writes=True)
    assert told(spared, 0, "form")["formation"]["members"] == [0]
    assert spared.group.replaces(1, -9)
    assert spared.group.begin_spare() == 2
    assert spared.hear(2) == {"kind": "begin"}
    assert spared.group.begin_spare() is None
    spared.ready(2, 0)
    assert told(spared, 2, "form")["formation"]["is_apart"]


def test_nobody_waits_for_one_that_is_not_called(spared):
    spared.group._headcount.limits = ElasticLimits(2, restarts=1, spares=2, patience=10)
    assert spared.group.ended(1, -9)
    spared.ready(0, 1, completed=6)
    assert told(spared, 0, "form")["formation"]["waiting"]
    spared.say(0, "formed", generation=2)
    spared.ready(0, 2, completed=7, takes_in=True, writes=True)
    assert spared.group.is_overdue(1e9)


def test_one_that_waits_does_not_replace_one_that_leaves(spared):
    spared.group._headcount.limits = ElasticLimits(2, restarts=1, spares=2, patience=10)
    spared.say(1, "leaving")
    assert told(spared, 1, "quit")


class Started(Processes):
    """The processes of a job, which is told of those that would be started."""

    def __init__(self, job):
        super().__init__([], [], [], [], types.SimpleNamespace(say=job.said.append), job.group)
        self._job = job

    def _start_one_more(self, number, kind, *, is_spare=False):
        self._job.start(elastic_member(kind, number), is_spare=is_spare)
        return number


def test_one_that_waits_is_the_next_one_that_is_added(spared):
    processes = Started(spared)
    processes._add_one()
    assert spared.said[-1] == "SIGUSR1: rank 2 is started"
    assert spared.hear(2) == {"kind": "begin"}
    assert spared.group.lacks_spare
    processes._add_one()
    assert spared.said[-1] == "SIGUSR1: rank 3 is started", "nobody waits"
    processes._start_spare()
    processes._add_one()
    assert spared.said[-1] == "SIGUSR1: rank 4 is started"
    assert spared.hear(4) == {"kind": "begin"}


def test_one_that_dies_while_it_waits_is_no_loss(spared):
    assert spared.group.ended(2, -9)
    assert "while it waited" in spared.said[-1]
    assert not spared.group.replaces(2, -9)
    assert spared.group.begin_spare() is None
    spared.group.ended(1, -9)
    assert spared.group.replaces(1, -9)


def test_ones_that_die_while_they_wait_are_not_started_for_ever(spared):
    spared.group.ended(2, -9)
    spared.start(members(4)[3], is_spare=True)
    spared.group.ended(3, 1)
    assert not spared.group.lacks_spare


def test_one_that_waits_is_killed_when_all_others_are_done(spared):
    spared.say(0, "done")
    spared.say(1, "done")
    assert spared.killed == [2]
    assert spared.group.ended(2, -9)
    assert not spared.said


def test_one_that_is_killed_at_the_end_is_no_failure(spared):
    spared.group.end()
    assert spared.group.ended(2, -9)


def test_one_that_cannot_be_started_is_forgotten(spared):
    spared.group.forget(2)
    assert spared.group.begin_spare() is None


@pytest.fixture
def short(tmp_path):
    """Two of three ranks are left, of a job that keeps its state."""
    job = Job(3, 3, journal="journal", backup_dir=str(tmp_path), restarts=1, patience=300)
    job.form([0, 1, 2], 1)
    job.group.ended(2, 0)
    for number in (0, 1):
        job.ready(number, 1, completed=6, takes_in=True, writes=number == 0)
    return job


@pytest.mark.parametrize("keeps", [False, True])
def test_one_that_is_stopped_is_killed_if_the_others_can_keep_their_state(keeps, tmp_path):
    folder = str(tmp_path) if keeps else ""
    job = Job(2, 2, journal="journal", backup_dir=folder)
    job.form([0, 1], 1)
    assert job.group.can_spare(1) == keeps
    assert job.group.ended(1, -9) == keeps


def test_a_job_keeps_its_state_before_it_ends(short, tmp_path):
    now = time.monotonic()
    assert not short.group.is_overdue(now), "nobody comes, so it does not wait"
    assert told(short, 0, "save")["question"] == 1
    assert not short.group.is_overdue(now + 10)
    (tmp_path / "elastic.backup").touch()
    short.say(0, "saved", question=1, why="")
    assert short.group.is_overdue(now + 10)
    assert f"it goes on from its state in {tmp_path}/elastic.backup" in short.group.shortage


def test_another_rank_is_asked_if_the_first_one_is_lost(short):
    now = time.monotonic()
    assert not short.group.is_overdue(now)
    assert short.group.ended(0, -9)
    short.ready(1, 1, completed=6, takes_in=True, writes=True)
    assert not short.group.is_overdue(now + 1)
    assert told(short, 1, "save")["question"] == 2
    short.say(1, "saved", question=2, why="the disk is full")
    assert short.group.is_overdue(now + 1)
    assert "its state could not be kept (the disk is full)" in short.group.shortage
    assert not short.group.ended(1, -9)
    assert not short.group.is_overdue(now + 2), "nobody is left"


def test_what_was_kept_is_not_the_state_of_a_job_that_went_on(short, tmp_path):
    assert not short.group.is_overdue(time.monotonic())
    short.start(members(4)[3])
    short.ready(3, 0)
    short.say(3, "near")
    told(short, 3, "meet")
    short.ready(3, 0, completed=6)
    for number in (0, 1, 3):
        assert told(short, number, "form")["formation"]["generation"] == 2
    (tmp_path / "elastic.backup").touch()
    short.say(0, "saved", question=1, why="")
    assert "BackupAndRestore" in short.keeping.advice, "the answer came too late"


def test_a_state_that_is_not_where_the_launcher_looks_is_not_kept(short):
    now = time.monotonic()
    assert not short.group.is_overdue(now)
    short.say(0, "saved", question=1, why="")
    assert short.group.is_overdue(now)
    assert "so the folder is not shared by all machines" in short.group.shortage


@pytest.fixture
def summed():
    """A job of ranks 0 and 1, with reducers 2 and 3."""
    job = Job(2, 1, restarts=1)
    for number in (2, 3):
        job.start(elastic_member("reducer", number))
    return job


def test_the_first_group_waits_for_all_reducers(summed):
    for number in (0, 1, 2):
        summed.ready(number, 0)
    with pytest.raises(TimeoutError):
        summed.sockets[0].recv(1)
    assert summed.group.ended(3, 0), "one that ends is not waited for"
    assert summed.said[-1] == "reducer 3 ended with exit status 0; the job goes on without it"
    formation = told(summed, 0, "form")["formation"]
    assert (formation["members"], formation["reducers"]) == ([0, 1], [2])
    assert told(summed, 2, "form")["formation"]["members"] == [0, 1]


def test_nobody_goes_on_before_reducers_have_formed_the_group(summed):
    for number in range(4):
        summed.ready(number, 0)
    for number in range(3):
        summed.say(number, "formed", generation=1)
    told(summed, 0, "form")
    with pytest.raises(TimeoutError):
        summed.sockets[0].recv(1)
    summed.say(3, "formed", generation=1)
    assert summed.hear(0)["kind"] == "go"


def test_the_work_of_a_lost_reducer_moves(summed):
    summed.form([0, 1, 2, 3], 1)
    assert summed.group.ended(2, -9)
    assert summed.group.replaces(2, -9)
    for number in (0, 1, 3):
        assert told(summed, number, "interrupt")["generation"] == 1
    summed.start(elastic_member("reducer", 4))
    found = summed.form([0, 1, 3], 2)  # nobody waits for the new one
    assert [one["reducers"] for one in found] == [[3]] * 3
    assert found[0]["recoveries"] == 1
    assert "reducer 2 was killed by SIGKILL" in summed.said[-1]
    assert "training goes on with ranks 0, 1 and reducer 3, after" in summed.said[-1]
    summed.ready(4, 0)
    told(summed, 0, "interrupt")
    for number in (0, 1, 3):
        summed.ready(number, 2)
    assert told(summed, 4, "form")["formation"]["reducers"] == [3, 4]


def test_a_reducer_does_not_use_up_what_is_kept_for_ranks(spared):
    spared.start(elastic_member("reducer", 3))
    assert spared.group.ended(3, -9)
    assert not spared.group.replaces(3, -9)
    assert spared.group.ended(1, -9)
    assert spared.group.replaces(1, -9)
    assert spared.group.begin_spare() == 2


def test_a_reducer_is_replaced_by_what_is_not_kept_for_ranks():
    job = Job(2, 1, restarts=2, spares=1)
    for number in (2, 3):
        job.start(elastic_member("reducer", number))
    for number, is_replaced in ((2, True), (3, False)):
        assert job.group.ended(number, -9)
        assert job.group.replaces(number, -9) == is_replaced


def test_reducers_leave_a_group_that_ranks_leave(summed):
    summed.form([0, 1, 2, 3], 1)
    for number in (0, 1):
        summed.say(number, "settled", generation=1)
    for number in (0, 1):
        summed.ready(number, 1)
    assert told(summed, 2, "interrupt")["generation"] == 1
    for number in (2, 3):
        summed.ready(number, 1)
    assert told(summed, 0, "form")["formation"]["reducers"] == [2, 3]


def test_a_rank_alone_has_no_reducers(summed):
    summed.form([0, 1, 2, 3], 1)
    assert summed.group.ended(0, -9)
    for number in (2, 3):
        summed.ready(number, 1)
    assert summed.form([1], 2)[0]["reducers"] == []
    summed.say(1, "done")
    assert told(summed, 2, "end")["generation"] == 2


def test_reducers_are_no_ranks(summed):
    summed.form([0, 1, 2, 3], 1)
    assert summed.group.can_spare(2)
    assert not summed.group.ended(2, 1), "one that fails by an error ends the job"
    assert summed.group.next_number == 4


def test_a_reducer_that_comes_late_interrupts_nobody_who_has_no_use_for_it(summed):
    summed.form([0, 1, 2, 3], 1)
    summed.start(elastic_member("reducer", 4))
    summed.say(0, "done")
    summed.ready(4, 0)
    with pytest.raises(TimeoutError):
        summed.sockets[1].recv(1)
    summed.say(1, "done")
    assert told(summed, 1, "end")
    assert summed.said == []


def test_a_reducer_that_is_not_ready_at_the_end_is_killed(summed):
    summed.form([0, 1, 2, 3], 1)
    summed.start(elastic_member("reducer", 4))
    for number in (0, 1):
        summed.say(number, "done")
    assert set(summed.killed) == {4}
    assert summed.group.ended(4, -9)


def test_nobody_is_told_of_a_group_that_is_no_more(summed):
    summed.form([0, 1, 2, 3], 1)
    summed.start(elastic_member("reducer", 4))
    summed.start(elastic_member("reducer", 5))
    summed.ready(4, 0)
    for number in (0, 1, 2, 3):
        summed.ready(number, 1)
    summed.ready(5, 0)  # while the others form a group
    for number in range(5):
        summed.say(number, "formed", generation=2)
    assert summed.said == []
    for number in range(5):
        summed.ready(number, 2)
    for number in range(6):
        summed.say(number, "formed", generation=3)
    (line,) = summed.said
    assert line.startswith("reducer 4 joins; reducer 5 joins; training goes on with ranks 0, 1 and")


def test_who_is_ready_while_the_job_ends_is_told(summed):
    summed.form([0, 1, 2, 3], 1)
    summed.ready(2, 1)
    summed.group.end()
    assert told(summed, 2, "end")
    summed.ready(0, 1)
    assert told(summed, 0, "quit")


def test_all_ranks_know_how_many_reducers_there_were_at_first(summed):
    assert summed.form([0, 1, 2, 3], 1)[0]["first_reducers"] == 2
    assert summed.group.ended(2, -9)
    assert summed.form([0, 1, 3], 2)[0]["first_reducers"] == 2
