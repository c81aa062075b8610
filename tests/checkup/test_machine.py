"""What a rank runs on."""

import os
import socket

import pytest

from tfdist.checkup import machine


def test_the_facts_are_of_this_machine():
    facts = machine.facts_of("rank 0", {"Python": "3"}, [], "CPU:0")
    assert facts.host == socket.gethostname()
    assert facts.cores == len(os.sched_getaffinity(0))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts.memory_bytes == pytest.approx(total, rel=0.01)
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.place == machine.facts_of("rank 1", {}, [], "CPU:0").place
