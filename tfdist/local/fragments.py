"""Which weights are exchanged together: fragments of whole variables."""

from __future__ import annotations

from collections.abc import Sequence


def plan_fragments(sizes: Sequence[int], fragments: int) -> list[list[int]]:
    """Divides variables into groups that have about equally many bytes.

    The largest variables are placed first, each in the group that has the fewest bytes so far; of
    equal ones the first comes first. So the largest group has at most 4/3 of the bytes that the
    best division would have (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969). The
    answer depends on `sizes` only, so it is the same in all processes.

    Douillard et al. (arXiv 2501.18512, section 2.2) divide by layers, one after the other or
    strided. Here the variables of a layer may be in several fragments.

    Args:
        sizes: the bytes of each variable.
        fragments: the number of groups.

    Returns:
        The positions of each group's variables, ascending; no positions if there are fewer
        variables than groups.

    Example:

    >>> from tfdist.local.fragments import plan_fragments
    >>> plan_fragments([60, 4, 40, 30, 4], 2)
    [[0, 1, 4], [2, 3]]
    """
    groups: list[list[int]] = [[] for _ in range(fragments)]
    used = [0] * fragments
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        smallest = min(range(fragments), key=lambda g: (used[g], len(groups[g])))
        groups[smallest].append(index)
        used[smallest] += sizes[index]
    return [sorted(group) for group in groups]
