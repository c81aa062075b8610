"""What groups need is kept while their ranks may still form them, and not for ever."""

import contextlib
import time

from tfdist.launcher.recent import _KEPT, Recent


def test_what_old_groups_needed_is_closed():
    is_open = []

    @contextlib.contextmanager
    def make(count):
        is_open.append(count)
        yield [{"SIZE": str(count)}] * count
        is_open.remove(count)

    with Recent(make) as recent:
        for count in range(1, _KEPT + 4):
            assert recent.variables(count) == [{"SIZE": str(count)}] * count
        end = time.monotonic() + 10
        while len(is_open) > _KEPT and time.monotonic() < end:
            time.sleep(0.01)
        assert is_open == list(range(4, _KEPT + 4))
    assert not is_open
