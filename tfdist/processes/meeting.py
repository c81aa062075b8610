"""Meetings: all processes compare what they are about to do, where all must do the same.

If processes start collective operations of different kinds or shapes, the connection is lost or all
wait for ever. So before an operation whose kind or shape depends on the script, the processes
compare what they are about to do. They use an operation that is the same everywhere: two numbers
from each process. Only if the numbers differ do texts travel, and all processes raise the same
error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.checksum import digest
from tfdist.elastic.following import CannotJoinError
from tfdist.engines.processes import Processes
from tfdist.engines.scopes import outside_of_scopes

_MOST_DIFFERENCES = 12
_LONGEST_VALUE = 160
_NOTHING = "nothing"

SAME_SCRIPT = (
    "All ranks run the same script and train one model, so they must do the same in the same "
    "order, with the same options."
)


def meet(
    processes: Processes,
    doing: str,
    facts: Mapping[str, Any],
    detail: str = "",
    number: int = 0,
    advice: str = SAME_SCRIPT,
) -> list[int]:
    """Called by all processes before they do something together.

    Args:
        processes: the processes.
        doing: what this process is about to do, such as "begins `fit`".
        facts: plain data (dicts, lists, strings, numbers) that must be equal in all processes.
        detail: what an error says besides `doing`; may differ between processes.
        number: an int64 that may differ between processes.
        advice: the first sentences of the error.

    Returns:
        Every process' `number`.

    Raises:
        ValueError: in all processes, when they do different things or their facts differ. The
            error names what differs, with the values and ranks.
        ConnectionError: when another process is lost.
    """
    if processes.is_alone:
        return [number]
    place = processes.meeting_place
    header = [digest(json.dumps([doing, facts], sort_keys=True).encode()), number]
    rows = outside_of_scopes(place.all_gather, header)
    if place.is_following and header[0] not in rows[:, 0]:
        raise CannotJoinError(
            "This rank was started later, or after its job had kept its state (--backup-dir), and "
            "its script does not do what was done before, so it cannot go on from there. Such a "
            f"script must do the same each time. Received: this rank {doing}"
        )
    if len(set(rows[:, 0])) > 1:
        text = json.dumps([doing, detail, facts], sort_keys=True)
        texts = outside_of_scopes(place.all_gather_texts, text)
        numbers = [place.number(rank) for rank in range(len(texts))]
        found = _what_differs([json.loads(text) for text in texts], numbers)
        raise ValueError(f"{advice} Received: {found}")
    return rows[:, 1].tolist()


def _what_differs(texts: Sequence[Any], numbers: Sequence[int]) -> str:
    doings = [" ".join(filter(None, (doing, detail))) for doing, detail, _ in texts]
    who_does_what = "; ".join(f"{ranks} {doing}" for doing, ranks in _by_value(doings, numbers))
    if len({doing for doing, _, _ in texts}) > 1:
        return who_does_what
    found = list(differences([facts for _, _, facts in texts]))
    shown = [
        f"{name}: "
        + ", ".join(f"{_short(value)} in {ranks}" for value, ranks in _by_value(values, numbers))
        for name, values in found[:_MOST_DIFFERENCES]
    ]
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more")
    where = f"each {doings[0]}" if len(set(doings)) == 1 else who_does_what
    return f"{'; '.join(shown)} (where {where})"


def differences(trees: Sequence[Any], name: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Finds the parts in which plain data differ.

    Args:
        trees: dicts, lists, strings and numbers, nested.
        name: the name of the data in messages.

    Yields:
        The name of a part, such as "model.layers[1].units", and its value in each of `trees`.
    """
    if all(tree == trees[0] for tree in trees):
        return
    if all(isinstance(tree, dict) for tree in trees):
        keys = dict.fromkeys(key for tree in trees for key in tree)
        for key in keys:
            parts = [tree.get(key, _NOTHING) for tree in trees]
            yield from differences(parts, f"{name}.{key}" if name else key)
        return
    if all(isinstance(tree, list) for tree in trees):
        lengths = [len(tree) for tree in trees]
        if len(set(lengths)) == 1:
            for index, items in enumerate(zip(*trees)):
                yield from differences(items, f"{name}[{index}]")
            return
        if max(lengths) > 8:
            yield f"number of {name}", lengths
            return
    yield name, list(trees)


def _by_value(values: Sequence[Any], numbers: Sequence[int]) -> list[tuple[Any, str]]:
    """Each distinct value with the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, value in zip(numbers, values):
        ranks.setdefault(json.dumps(value, sort_keys=True), []).append(rank)
    return [(json.loads(value), names_of(having)) for value, having in ranks.items()]


def names_of(ranks: Sequence[int]) -> str:
    """The ranks as words: "rank 0", "ranks 0, 2"."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _short(value: object) -> str:
    text = value if value == _NOTHING else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
