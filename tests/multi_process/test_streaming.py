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
    plain = ("at once", "late", "where it is merged")
    for names in (plain, ("late, coded", "where it is merged, coded")):
        runs = [rank[name] for rank in found for name in names]
        assert len({bits for run in runs for bits in run["bits"]}) == 1
    for rank in found:
        for name in rank:
            # Of 19 updates: sent after 4, 8, 12 and 16. At least two steps end meanwhile.
            assert len(rank[name]["beside"]) == (0 if name.startswith("where") else 4)
        for name in ("late", "late, coded"):
            assert min(rank[name]["beside"]) >= 2
