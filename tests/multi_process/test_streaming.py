"""Streaming DiLoCo among processes: by hand, resumed, coded, and exchanged beside steps."""

from tests.local_steps import checks
from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import streaming


@scenario(streaming.by_hands, ALL)
def test_fragments_equal_the_same_by_hand(found):
    checks.by_hands(found)
    for rank in found:
        for name in streaming.BY_HAND:
            assert rank[name]["inside"], "the condition in which replicas meet was not found"


@scenario(streaming.resumed)
def test_resumed_training_is_the_same_to_the_bit(found):
    checks.resumed(found)


@scenario(streaming.lossless)
def test_a_codec_that_sends_everything_changes_nothing(found):
    checks.lossless(found)


@scenario(streaming.coded)
def test_fragments_are_coded(found):
    checks.coded(found)


@scenario(streaming.delayed)
def test_exchanges_run_beside_steps_and_timing_changes_nothing(found):
    for kind in (True, False):
        assert (
            len({b for rank in found for n in ("at once", "late") for b in rank[n, kind]["bits"]})
            == 1
        )
        for rank in found:
            # Of 19 updates: begun after 4, 8, 12 and 16; the last one is merged by the 19th.
            assert rank["at once", kind]["exchanges"] == 8
            assert min(rank["late", kind]["beside"]) >= 1
