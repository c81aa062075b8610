"""Texts that processes tell each other: whole, and eight bytes in each integer that travels."""

import threading

import pytest
import tensorflow as tf

from tfdist.engines.processes import Processes


class Thread(Processes):
    """A process that is a thread of this one.

    Attributes:
        sizes: of the tables that it has handed in.
    """

    aside = None

    def __init__(self, rank, size, meeting, tables):
        super().__init__(rank, size)
        self.sizes = []
        self._meeting = meeting
        self._tables = tables

    def _sum(self, value):
        self.sizes.append(tuple(value.shape))
        self._tables[self.rank] = value
        self._meeting.wait(10)
        total = tf.add_n(self._tables)
        self._meeting.wait(10)
        return total


@pytest.mark.parametrize(
    ("texts", "integers"),
    [
        (["", ""], None),
        (["12345678", ""], 1),
        (["123456789", "ä€😀" * 3], 4),
        (["\0\x7f\n ", "ÿ"], 1),
        (["a" * 1024, "b", "c" * 1023], 128),
    ],
    ids=["nothing", "one integer", "letters of several bytes", "control characters", "three ranks"],
)
def test_all_have_the_texts_of_all(texts, integers):
    meeting, tables = threading.Barrier(len(texts)), [None] * len(texts)
    ranks = [Thread(rank, len(texts), meeting, tables) for rank in range(len(texts))]
    found = {}

    def tell(own):
        found[own.rank] = own.all_gather_texts(texts[own.rank])

    threads = [threading.Thread(target=tell, args=(own,)) for own in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == dict.fromkeys(range(len(texts)), texts)
    lengths = (len(texts), 1)
    assert ranks[0].sizes == [lengths] + ([(len(texts), integers)] if integers else [])
