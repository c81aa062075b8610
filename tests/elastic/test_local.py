"""Local steps in elastic jobs: a lost rank takes its last local steps along, and no more."""

import pickle

import numpy as np
import pytest

from tests.elastic.local_job import cases, notes
from tests.elastic.test_faults import DEADLINE, ENGINES, ONE_USUAL, launch
from tests.local_steps.by_hand import Replicas

# What happens to which of three ranks, with which case; which of them are left. A round has three
# steps, an epoch eight. So step 5 is in a round, and step 6 is its last one.
FAULTS = {
    "no fault": ("outer", [], [0, 1, 2]),
    "dies in a round": ("mean", ["1:SIGKILL:micro 5"], [0, 2]),
    "the first rank dies in a round": ("outer", ["0:SIGKILL:step 4"], [1, 2]),
    "dies before its part of a meeting": ("outer", ["1:SIGKILL:meet 2"], [0, 2]),
    "dies after its part of a meeting": ("mean", ["2:SIGKILL:met 2"], [0, 1]),
    "the first rank dies in a meeting": ("mean", ["0:SIGKILL:meet 3"], [1, 2]),
    "one dies in a round, one in the meeting": (
        "outer",
        ["1:SIGKILL:micro 5", "0:SIGKILL:form 1"],
        [2],
    ),
    "two die at once": ("mean", ["0:SIGKILL:step 5", "1:SIGKILL:step 5"], [2]),
    "misses the end of a meeting": ("mean", ["1:MISS:2"], [0, 1, 2]),
    "leaves in a round": ("mean", ["1:SIGTERM:micro 4"], [0, 2]),
    "dies in evaluate": ("outer", ["1:SIGKILL:evaluate"], [0, 2]),
    "dies at an epoch's end": ("mean", ["0:SIGKILL:epoch 1"], [1, 2]),
    "dies while it traces": ("mean", ["1:SIGKILL:trace"], [0, 2]),
    "is stopped for ever": ("outer", ["1:SIGSTOP:micro 10"], [0, 2]),
}

# The same for ranks that are replaced by new ones, for which the others wait.
REPLACED = {
    "dies in a round": ("outer", ["1:SIGKILL:micro 5"], [0, 2, 3]),
    "the first rank dies in a meeting": ("mean", ["0:SIGKILL:meet 2"], [1, 2, 3]),
    "the new one dies too": ("mean", ["1:SIGKILL:micro 5", "3:SIGKILL:micro 14"], [0, 2, 4]),
    "dies, with callbacks that look": ("looks", ["1:SIGKILL:micro 5"], [0, 2, 3]),
    "all of the first ranks die": (
        "outer",
        ["0:SIGKILL:micro 4", "1:SIGKILL:micro 10", "2:SIGKILL:micro 16"],
        [3, 4, 5],
    ),
}


class Members(Replicas):
    """Ranks by hand: they meet as the job's ranks say, with the steps that these have noted.

    Args:
        case: the case.
        meetings: who met, with how many samples, for each meeting.
        steps: the notes of each rank.
        copied: whose state each rank has got that has joined.
    """

    def __init__(self, case, meetings, steps, copied):
        super().__init__(case, 1 + max(steps))
        self.x, self.y = case.data()
        self._copied = copied
        self._known = set(meetings[0][0])
        self.losses_of = [[] for _ in range(case.epochs)]
        for number, (members, samples) in enumerate(meetings):
            self._round(number, dict(zip(members, samples, strict=True)), steps)

    def _round(self, number, met, steps):
        joining = set(met) - self._known
        assert not any(met[member] for member in joining), "one that joins has made no step"
        copied = {self._copied[member] for member in joining} - set(met)  # were lost after that
        for member in (*(m for m, samples in met.items() if samples), *copied):
            made = [note for note in steps[member] if note.round == number]
            samples = sum(note.stop - note.first for note in made)
            assert samples == met.get(member, samples)
            for note in made:
                part = slice(note.first, note.stop)
                value = self._gradients_of(member, self.x[part], self.y[part])
                if member in met:
                    self.losses_of[note.epoch].append((value, note.stop - note.first))
                self._update(member)
        for member in sorted(joining):
            self._become(member, self._copied[member])
        self._known |= set(met)
        self._meet_without({*range(len(self.models))} - {m for m, n in met.items() if n})

    def _become(self, member, root):
        """Gives a rank that joins the optimizer's own state of another one."""
        averages = {id(v) for v in self._averages(self.optimizers[member])}  # they meet
        ours, theirs = self.optimizers[member].variables, self.optimizers[root].variables
        for our, their in zip(ours, theirs, strict=True):
            if id(our) not in averages:
                our.assign(their)

    def _meet_without(self, others):
        for member in others:
            self.samples[member] = self.unsettled[member] = 0
        if self.samples.any():
            self.meet()  # else all have what the last meeting has left


def check(folder, left, case):
    """Checks that the ranks in `left` have one result, which is that by hand."""
    found = {n: pickle.loads((folder / f"rank-{n}.pickle").read_bytes()) for n in left}
    steps = {int(p.name.split("-")[1]): notes(p) for p in folder.glob("steps-*")}
    first = found[left[0]]
    for result in found.values():
        assert result["members"] == left
        for key in ("meetings", "history", "evaluated", "looks"):
            assert result[key] == first[key], key
        for key in ("weights", "own"):  # a file has the state of the first rank
            for loaded, saved in zip(result["loaded"][key], first[key], strict=True):
                np.testing.assert_array_equal(loaded, saved)
        for ours, theirs in zip(result["weights"], first["weights"], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    copied = {int(p.name.split("-")[1]): int(p.read_text()) for p in folder.glob("copied-*")}
    by_hand = Members(case, first["meetings"], steps, copied)
    averages = [optimizer.variables for optimizer in by_hand.optimizers]
    by_hand.finish()
    model = by_hand.models[left[0]]
    for ours, variable in zip(first["weights"], model.weights, strict=True):
        if "float" in variable.dtype:
            np.testing.assert_allclose(ours, variable.numpy(), rtol=0, atol=1e-6)
    for member, result in found.items():
        theirs = [v for v in averages[member] if not v.path.endswith("learning_rate")]
        for ours, their in zip(result["own"], theirs, strict=True):
            np.testing.assert_allclose(ours, their.numpy(), rtol=0, atol=2e-6, err_msg=their.path)
    losses = [
        sum(v * n for v, n in losses) / sum(n for _, n in losses) for losses in by_hand.losses_of
    ]
    history = first["history"]
    if "own" in history:  # then "loss" too is that of the last batch
        last = by_hand.x[-(case.rows % case.batch) :]
        np.testing.assert_allclose(history["own"][-1], last.mean(), rtol=1e-4)
    else:
        np.testing.assert_allclose(history["loss"], losses, rtol=1e-4)
    assert len(list(folder.glob("*.keras"))) == case.epochs + 1
    return first


def train(folder, engine, case, *faults, ranks=3, least=1, restarts=0):
    job = ["tfdist", "run", "-n", str(ranks), "--min", str(least), "--strategy", engine]
    job += ["--restarts", str(restarts), "--stall-timeout", "3", "--timeout", str(DEADLINE)]
    job += ["-m", "tests.elastic.local_job", str(folder), case, *faults]
    return launch(folder, *job, RANKS=str(ranks))


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FAULTS)
def test_only_local_steps_of_lost_ranks_are_lost(name, engine, tmp_path):
    case, faults, left = FAULTS[name]
    done = train(tmp_path, engine, case, *faults)
    assert done.returncode == 0, done.stderr
    first = check(tmp_path, left, cases()[case])
    members = [set(met[0]) for met in first["meetings"]]
    assert members[-1] == set(left)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REPLACED)
def test_one_that_joins_takes_part_from_the_next_round(name, engine, tmp_path):
    case, faults, there = REPLACED[name]
    done = train(tmp_path, engine, case, *faults, least=3, restarts=len(faults))
    assert done.returncode == 0, done.stderr
    first = check(tmp_path, there, cases()[case])
    joined = next(met for met in first["meetings"] if max(there) in met[0])
    assert dict(zip(*joined))[max(there)] == 0
    last = dict(zip(*first["meetings"][-1]))
    assert all(last.values()), "all have made steps since"


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("case", "moment"), [("reports", "meet"), ("outer", "meet"), ("mean", "met")]
)
def test_what_a_lost_rank_has_learned_is_lost_also_if_one_that_joins_has_copied_it(
    case, moment, engine, tmp_path
):
    faults = ["1:SIGKILL:micro 5", f"0:SIGKILL:{moment} joined"]
    done = train(tmp_path, engine, case, *faults, ranks=2, least=2, restarts=2)
    assert done.returncode == 0, done.stderr
    first = check(tmp_path, [2, 3], cases()[case])
    assert (tmp_path / "copied-2").read_text() == "0", "it has copied the rank that was lost"
    if moment == "meet":
        assert ((2, 3), (0, 0)) in first["meetings"], "nobody was left who had learned something"
        assert "all ranks that have trained since the last meeting" in done.stderr


@pytest.mark.parametrize("engine", ONE_USUAL)
@pytest.mark.parametrize(
    "check",
    [
        "metrics_with_a_nan_in_one_rank",
        pytest.param("frozen_models", marks=pytest.mark.full),
        pytest.param("data_that_are_not_tuned", marks=pytest.mark.full),
        pytest.param("metrics_that_are_reset_within_a_round", marks=pytest.mark.full),
        pytest.param("models_that_are_freed", marks=pytest.mark.full),
        pytest.param("steps_that_are_not_traced", marks=pytest.mark.full),
        pytest.param("metrics_that_are_no_sums", marks=pytest.mark.full),
    ],
)
def test_what_local_steps_do_where_nobody_is_lost(check, engine, tmp_path):
    job = ["tfdist", "run", "-n", "2", "--min", "2", "--strategy", engine]
    job += ["--timeout", str(DEADLINE), "-m", "tests.elastic.local_checks", check]
    done = launch(tmp_path, *job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"passed: {check}") == 2, "in both ranks"
    assert "are lost" not in done.stderr + done.stdout
