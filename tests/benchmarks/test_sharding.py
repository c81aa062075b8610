"""The table of sharded training, with the rows of PyTorch."""

import argparse

from benchmarks import sharding


def _measured(seconds):
    return {"parameters": 10, "peak": 160, "making": 50, "sent": 2e6, "seconds": seconds}


def test_each_system_is_compared_with_itself_without_sharding():
    found = {
        ("horovod", 2, 1, "none"): [_measured(0.4), _measured(0.8)],
        ("horovod", 2, 1, "optimizer"): [_measured(0.2), _measured(0.2)],
        ("pytorch", 2, 1, "none"): [_measured(0.1), _measured(0.1)],
        ("pytorch", 2, 1, "parameters"): [_measured(0.3), _measured(0.3)],
    }
    arguments = argparse.Namespace(
        model=sharding.CHAIN, layers=1, width=2, steps=5, rounds=2, rate=None
    )
    rows = [line.split(" | ") for line in sharding.table(found, arguments).splitlines()[-4:]]
    assert [row[0].strip("| ") for row in rows] == ["`horovod`"] * 2 + ["PyTorch, Gloo"] * 2
    assert [row[3] for row in rows] == ["None", '"optimizer"', "DDP", "FSDP2"]
    # The median of the ratios: 0.5 and 0.25.
    assert [row[-1].strip(" |") for row in rows] == ["1.00", "0.38", "1.00", "3.00"]
    assert rows[0][4:6] == ["5.0", "16.0"]
