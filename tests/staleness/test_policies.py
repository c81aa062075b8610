"""The policies' answers, without a cluster."""

import pytest

import tfdist
from tfdist.staleness import SSP, Bounded, DelayCompensated, InverseLR, Policies, Synchronous


@pytest.mark.parametrize(("staleness", "factor"), [(0, 1.0), (1, 1.0), (2, 0.25), (4, 1 / 16)])
def test_the_learning_rate_is_divided_by_a_power_of_the_staleness(staleness, factor):
    assert InverseLR(power=2).learning_rate_factor(staleness) == factor


def test_bounded_drops_what_is_beyond():
    policy = Bounded(2)
    assert policy.accepts(2)
    assert not policy.accepts(3)
    assert policy.may_update([100])
    assert policy.may_start(ahead=0, under_way=100)


def test_bounded_waits_where_it_is_told_to():
    policy = Bounded(2, on_exceed="wait")
    assert policy.may_update([2, 1])
    assert not policy.may_update([2, 3])
    assert policy.may_start(ahead=9, under_way=2)
    assert not policy.may_start(ahead=0, under_way=3)


def test_ssp_lets_nobody_get_too_far_ahead():
    assert SSP(2).may_start(ahead=2, under_way=9)
    assert not SSP(2).may_start(ahead=3, under_way=0)


def test_policies_together_allow_what_all_allow():
    policies = Policies.of([SSP(2), Bounded(4), InverseLR()])
    assert policies.may_start(2, 0)
    assert not policies.may_start(3, 0)
    assert not policies.accepts(5)
    assert policies.learning_rate_factor(2) == 0.5
    assert not policies.synchronous
    assert not policies.compensates


def test_no_policy_allows_everything():
    policies = Policies.of(None)
    assert policies.may_start(10**6, 10**6)
    assert policies.may_update([10**6])
    assert policies.accepts(10**6)
    assert policies.learning_rate_factor(10**6) == 1.0


def test_one_policy_needs_no_list():
    assert Policies.of(Synchronous()).synchronous
    assert Policies.of(DelayCompensated()).compensates


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policies.of([Synchronous(), SSP(1)]), "use it alone. Received"),
        (lambda: Policies.of([SSP(1), SSP(2)]), "can be used once. Received"),
        (lambda: Policies.of("ssp"), "must be a policy.*Received: staleness='ssp'"),
        (lambda: Policies.of([SSP]), "must be a policy.*Received"),
        (lambda: SSP(-1), "`slack` must be an integer >= 0"),
        (lambda: Bounded(1.5), "`max_staleness` must be an integer >= 0"),
        (lambda: Bounded(1, "stop"), "`on_exceed` must be one of"),
        (lambda: InverseLR(-1), "`power` must be a number >= 0"),
        (lambda: DelayCompensated(float("nan")), "`lam` must be a number >= 0"),
        (lambda: DelayCompensated(1, adaptive=1), "`adaptive` must be True or False"),
    ],
)
def test_what_is_out_of_range_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_synchronous_strategy_has_no_staleness():
    with pytest.raises(ValueError, match="trains asynchronously.*Received: .*'mirrored'"):
        tfdist.Strategy("mirrored", staleness=SSP(1))
    tfdist.Strategy("mirrored", staleness=None)
