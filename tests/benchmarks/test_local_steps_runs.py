"""The benchmark of local steps runs; no time is asserted."""

from __future__ import annotations

import json

import pytest

from benchmarks.local_sgd import plan
from tests.benchmarks.running import between, run
from tests.traffic import network

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against()),
]
SYSTEM = plan.own("multi_worker", "h32-bits")


def test_losses_and_bytes_are_those_of_the_choices(tmp_path):
    page, kept, picture = (tmp_path / name for name in ("page.md", "kept.json", "picture.png"))
    page.write_text("before\n<!-- local_steps:begin -->\n<!-- local_steps:end -->\nafter\n")
    options = ["--parts", "loss", "--tasks", "digits", "--seeds", "1", "--blocks", "2"]
    options += ["--updates", "32", "--choices", "synchronous", "h32-bits", "--kept", str(kept)]
    printed = run("local_steps", *options, "--update", str(page), "--plot", str(picture))
    synchronous, local = [known["found"] for known in json.loads(kept.read_text())["jobs"]]
    for found in (synchronous, local):
        assert len(found["loss"]) == len(found["bytes"]) == len(found["seconds"]) == 2
        assert found["loss"][1] < found["loss"][0]
    assert sum(synchronous["bytes"]) > 100 * sum(local["bytes"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert printed.endswith(between(page, "local_steps"))
    # Nothing is measured again.
    assert run("local_steps", *options, "--plot", str(picture)) == printed


def test_steps_are_timed_on_each_link(tmp_path):
    kept = tmp_path / "kept.json"
    options = ["--parts", "step_time", "--choices", "h32-bits", "--rounds", "1", "--steps", "32"]
    options += ["--rates", "100mbit", "100mbit+50ms", "--kept", str(kept)]
    printed = run("local_steps", *options)
    found = {known["job"][1]: known["found"] for known in json.loads(kept.read_text())["jobs"]}
    assert list(found) == ["keras", SYSTEM]
    alone, local = (of_system["rates"] for of_system in found.values())
    for rate in ("100mbit", "100mbit+50ms"):
        assert 0 < alone[rate]["seconds"]
        # 10 M parameters of 4 bits in 32 steps, and what else travels.
        assert 5e6 / 32 < local[rate]["bytes"] < 6e6 / 32
        # Nobody talks to anybody but for a few requests for addresses.
        assert alone[rate]["bytes"] < 100
    assert "step on 100 Mbit/s, 50 ms each way, by one device" in printed
