"""What groups need is kept while their ranks may still form them, and not for ever."""

import contextlib
import time

from tfdist.launcher.recent import _KEPT, Recent


class Made:
    """Makes variables, and notes which are needed still; a place is a number here."""

    def __init__(self):
        self.is_open = []

    @contextlib.contextmanager
    def __call__(self, ranks):
        self.is_open.append(ranks)
        yield [{"PLACES": str(ranks)}] * len(ranks)
        self.is_open.remove(ranks)


def test_what_old_groups_needed_is_closed():
    made = Made()
    with Recent(made) as recent:
        for number in range(_KEPT + 3):
            ranks = [number, number]
            assert recent.variables(ranks) == [{"PLACES": str(ranks)}] * 2
        end = time.monotonic() + 10
        while len(made.is_open) > _KEPT and time.monotonic() < end:
            time.sleep(0.01)
        assert made.is_open == [[number, number] for number in range(3, _KEPT + 3)]
    assert not made.is_open


def test_ranks_that_are_alone_at_one_place_need_one_thing():
    made = Made()
    with Recent(made) as recent:
        for _ in range(2 * _KEPT):
            for place in (0, 1):
                assert recent.variables([place]) == [{"PLACES": str([place])}]
        assert made.is_open == [[0], [1]]
    assert not made.is_open
