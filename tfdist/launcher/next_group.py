"""What ranks of an elastic job do next that are all ready to form a group."""

from __future__ import annotations

from tfdist.launcher.formations import Formations
from tfdist.launcher.group_rank import Roster, writers
from tfdist.launcher.headcount import Headcount


def form_or_wait(ranks: Roster, headcount: Headcount, formations: Formations) -> None:
    """Forms a group, or waits for ranks that join.

    Args:
        ranks: all ranks; those who have the state of the job are ready.
        headcount: knows whether they are enough.
        formations: forms the group.
    """
    alive = ranks.alive()
    new = [rank for rank in ranks.new() if rank.state == "ready"]
    coming = ranks.coming()
    is_short = len(alive) + len(new) + len(ranks.done()) < headcount.limits.least
    can_take_in = len({rank.completed for rank in alive}) == 1 and all(
        rank.takes_in and not rank.leaves for rank in alive
    )
    if coming or (is_short and headcount.keeping.folder):  # they read what the others have done
        can_take_in &= all(rank.writes for rank in writers(alive))
    if (coming or is_short or new) and not can_take_in:
        headcount.end_waiting()
        formations.form(alive, is_interim=True)
    elif coming:
        for rank in coming:
            if rank.state == "near":
                rank.state, rank.met = "expected", alive[0].completed
                rank.link.say("meet", completed=alive[0].completed)
    elif is_short:
        headcount.begin_to_wait()
    else:
        headcount.end_waiting()
        formations.form([*alive, *new], is_interim=False)
