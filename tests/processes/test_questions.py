"""How often processes ask each other whether one has been interrupted."""

import time

import pytest

from tfdist.engines.processes import OneProcess
from tfdist.processes import runs


@pytest.mark.parametrize(
    ("question", "expected"), [(0.0, 1.0), (0.001, 1.0), (0.1, 10.0), (0.2, 20.0), (1.0, 30.0)]
)
def test_a_slow_question_is_asked_less_often(question, expected):
    assert runs._seconds_between(question) == pytest.approx(expected)


class _Slow(OneProcess):
    """A process whose messages to itself take a while."""

    def all_gather(self, row):
        time.sleep(0.05)
        return super().all_gather(row)


def _asked(processes, steps):
    """The steps that asked."""
    questions = runs.Questions(processes)
    found = []
    for step in range(steps):
        before = questions._steps_left
        time.sleep(0.01)
        questions.ask_now_and_then()
        if before == 1:
            found.append(step)
    return found


def test_steps_between_questions_follow_what_a_question_takes(monkeypatch):
    monkeypatch.setattr(runs, "_SECONDS_BETWEEN_QUESTIONS", 0.04)
    fast, slow = _asked(OneProcess(), 64), _asked(_Slow(), 64)
    # With slow questions the distance doubles each time, with fast ones it stays.
    assert len(fast) > len(slow)
    distances = [after - before for before, after in zip(slow, slow[1:])]
    assert distances[-1] >= 16
    assert all(after == 2 * before for before, after in zip(distances[1:], distances[2:]))
