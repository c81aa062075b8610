"""What groups need is kept while their ranks may still form them, and not for ever."""

import contextlib
import time

import pytest

from tfdist.launcher.recent import _KEPT, _KEPT_OF_ONE, Recent


@pytest.mark.parametrize(("size", "most"), [(1, _KEPT_OF_ONE), (2, _KEPT)])
def test_what_old_groups_needed_is_closed(size, most):
    is_open = []

    @contextlib.contextmanager
    def make(ranks):
        number = ranks[0]
        is_open.append(number)
        yield [{"NUMBER": str(number)}] * size
        is_open.remove(number)

    with Recent(make) as recent:
        for number in range(most + 3):
            assert recent.variables([number] * size) == [{"NUMBER": str(number)}] * size
        end = time.monotonic() + 10
        while len(is_open) > most and time.monotonic() < end:
            time.sleep(0.01)
        assert is_open == list(range(3, most + 3))
        recent.variables([0] * (3 - size))
        assert len(is_open) == most + 1, "groups of one rank and others do not count as one"
    assert not is_open
