"""How a rank of an elastic job ends: when it is asked to, at the end of its script, or failing."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType, TracebackType

from tfdist.elastic.link import Link

# A rank that has ended well waits so long for the others: they may still read from it.
_PATIENCE = 10.0


def watch(link: Link) -> None:
    """Tells the launcher when this process is asked to leave, by SIGTERM, and when it ends.

    A second SIGTERM ends the process at once. At the end of its script the process waits for the
    others, unless an exception has ended the script. Processes that this one forks do none of this.

    Args:
        link: the connection to the launcher.
    """
    if threading.current_thread() is threading.main_thread():
        _leave_on_sigterm(link)
    failed = threading.Event()
    _note_exceptions(failed)
    own = os.getpid()

    def end() -> None:
        if not failed.is_set() and not link.has_left and os.getpid() == own:
            link.say("done")
            link.wait_for_end(_PATIENCE)

    atexit.register(end)


def _leave_on_sigterm(link: Link) -> None:
    own = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() == own:
            link.say("leaving")
        else:  # a process that was forked a moment ago
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.local()

    def hold_sigterm() -> None:
        # Python forgets a signal that a forked process gets before it has its own handler.
        thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def take_sigterm() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, thread.mask)

    def die_on_sigterm() -> None:
        if signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take_sigterm()

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)
        os.register_at_fork(
            before=hold_sigterm, after_in_parent=take_sigterm, after_in_child=die_on_sigterm
        )


def _note_exceptions(failed: threading.Event) -> None:
    before = sys.excepthook

    def note(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        failed.set()
        before(kind, error, traceback)

    sys.excepthook = note
