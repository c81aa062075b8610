"""What a parameter server refuses."""

import re

import pytest

pytestmark = pytest.mark.xdist_group("parameter_server")

MESSAGES = {
    "empty": "ValueError: The data set has no batches",
    "generator": 'ValueError: .*it calls Python.*input="dynamic".*Received',
    "train_on_batch": "ValueError: Under a parameter server.*fit.*Received: .*train_on_batch",
    "jit_compile": "ValueError: .*`jit_compile=False`.*Received: jit_compile=True",
    "run_eagerly": "ValueError: .*`run_eagerly=False`.*Received: run_eagerly=True",
    "input": r"ValueError: `input` must be one of \['static', 'dynamic'\]. Received: input='none'",
    "max_pending": "ValueError: `max_pending` must be an integer >= 1. Received: max_pending=0",
    "staleness": "ValueError: `staleness` must be a policy.*Received: staleness='inverse_lr'",
    "worker_timeout": "ValueError: `worker_timeout` must be a number > 0",
    "options of the optimizer": "ValueError: .*options.*are the strategy's.*Received: ",
    "plain in a list": "ValueError: .* not wrapped.*not items of a list.*Received: SGD named",
    "clipnorm in a list": "ValueError: `clipnorm` needs.*Received: SGD with clipnorm=1.0",
    "options in a list": "ValueError: .*options.*are the strategy's.*Received: ",
    "outside of the scope": "ValueError: The model was not built in the scope",
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.scenario("errors")
def test_it_is_refused(found, name):
    assert re.search(MESSAGES[name], found[name], re.DOTALL), found[name]
