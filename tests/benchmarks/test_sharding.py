"""The table of sharded training, with the rows of PyTorch."""

import argparse
import json
import os

import pytest

from benchmarks import sharding
from benchmarks.common import runner


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
        model=sharding.CHAIN, layers=1, width=2, steps=5, rounds=2, rate=None, lean=False
    )
    rows = [line.split(" | ") for line in sharding.table(found, arguments).splitlines()[-4:]]
    assert [row[0].strip("| ") for row in rows] == ["`horovod`"] * 2 + ["PyTorch, Gloo"] * 2
    assert [row[3] for row in rows] == ["None", '"optimizer"', "DDP", "FSDP2"]
    # The median of the ratios: 0.5 and 0.25.
    assert [row[-1].strip(" |") for row in rows] == ["1.00", "0.38", "1.00", "3.00"]
    assert rows[0][4:6] == ["5.0", "16.0"]


def test_the_chart_is_drawn_from_what_is_kept(tmp_path, monkeypatch, capsys):
    measured = [
        ["horovod", 2, 1, "none", [_measured(0.4), {**_measured(0.4), "peak": 180}]],
        ["horovod", 4, 1, "none", [_measured(0.4)]],
        ["horovod", 4, 4, "none", [{**_measured(0.4), "peak": 500}]],
        ["pytorch", 2, 1, "none", [_measured(0.4)]],
        ["pytorch", 2, 1, "parameters", [{**_measured(0.4), "peak": 90}]],
    ]
    kept, picture = tmp_path / "kept.json", tmp_path / "sharding.png"
    kept.write_text(json.dumps(measured))
    found = {tuple(job): rounds for *job, rounds in measured}
    assert sharding.lines(found) == {
        "horovod": {"None": {2: 17.0, 4: 16.0}},
        "PyTorch, Gloo": {"DDP": {2: 16.0}, "FSDP2": {2: 9.0}},
    }
    monkeypatch.setattr(
        "sys.argv", ["sharding", "--measured", str(kept), "--plot", str(picture), "--rounds", "1"]
    )
    sharding.main()
    assert picture.stat().st_size > 1000
    assert "![Memory of a rank by the number of ranks](images/sharding.png)" in (
        capsys.readouterr().out
    )


def test_a_lean_table_says_with_which_variables(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps([["horovod", 2, 1, "none", [_measured(0.4)]]]))
    measured = ["sharding", "--measured", str(kept), "--rounds", "1"]
    for name in runner.FREE_MEMORY_GOES_BACK:
        monkeypatch.setenv(name, "as before")  # and so they are set back at the end
    monkeypatch.setattr("sys.argv", [*measured, "--lean"])
    sharding.main()
    assert "`TF_ENABLE_ONEDNN_OPTS=0`" in capsys.readouterr().out
    assert os.environ["MALLOC_MMAP_MAX_"] == runner.FREE_MEMORY_GOES_BACK["MALLOC_MMAP_MAX_"]
    monkeypatch.setattr("sys.argv", [*measured, "--lean", "--rate", "1gbit"])
    with pytest.raises(SystemExit):
        sharding.main()
