"""Writes the equivalence table of the README: tfdist beside plain Keras, from the same run.

python -m tests.equivalence.report          # runs everything, about 20 minutes on 2 cores
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import pathlib
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import keras
import tensorflow as tf

import tfdist
from benchmarks import readme
from tests.equivalence import harness
from tests.equivalence.features import THEMES

_PEER_TIMEOUT_SECONDS = 180


def run_tfdist(names: list[str]) -> dict[str, float]:
    """max |Δw| of each feature, the worst over the numbers of replicas; inf where a test failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
        command += ["tests/equivalence/test_equivalence.py", f"--junitxml={report}"]
        subprocess.run(command, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    worst: dict[str, float] = {}
    for case in cases:
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        passed = case.find("failure") is None and case.find("error") is None
        name = properties.get("feature")
        if name:
            difference = float(properties["weight_difference"]) if passed else math.inf
            worst[name] = max(worst.get(name, 0.0), difference)
    return {name: worst.get(name, math.inf) for name in names}


def run_peer(name: str) -> dict:
    """What plain Keras gives for a feature; see `tests.equivalence.peer`."""
    command = [sys.executable, "-m", "tests.equivalence.peer", name]
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=_PEER_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": "hangs"}
    lines = [line for line in finished.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"error": f"exit status {finished.returncode}"}


def describe_ours(difference: float) -> str:
    return f"✓ {difference:.0e}" if difference <= harness.MAX_WEIGHT_DIFFERENCE else "✗"


def describe_peer(result: dict) -> str:
    if "error" in result:
        error = result["error"]
        return f"✗ {error}" if error == "hangs" else f"✗ crashes ({error})"
    difference = result["weight_difference"]
    if difference > harness.MAX_WEIGHT_DIFFERENCE:
        return "✗ wrong weights" + (f" ({difference:.0e})" if math.isfinite(difference) else "")
    if result["history_difference"] > harness.MAX_HISTORY_DIFFERENCE:
        return "✗ wrong loss or metrics reported"
    return f"✓ {difference:.0e}"


def table(ours: dict[str, float], peers: dict[str, dict]) -> str:
    """The Markdown text between the README's markers."""
    right = sum(value <= harness.MAX_WEIGHT_DIFFERENCE for value in ours.values())
    peer_right = sum(describe_peer(result).startswith("✓") for result in peers.values())
    lines = [
        f"**tfdist: {right} of {len(ours)} features equal one device; "
        f"plain Keras with `tf.distribute.MirroredStrategy`: {peer_right}.**",
        "",
        "Each cell trains at least two epochs and compares weights (max |Δw| ≤ 1e-6, the figure "
        "shown), loss, metrics and validation (1e-5 relative) with one device. tfdist: the worst "
        "of 1, 2, 3 and 4 virtual CPU devices, and all replicas identical to the bit; plain "
        f"Keras: 2 devices. Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, tfdist {tfdist.__version__}. Made by `make equivalence`.",
    ]
    for theme in THEMES:
        title = theme.__doc__.strip().splitlines()[0].rstrip(".")
        lines += ["", f"<details><summary>{title}</summary>", ""]
        lines += ["| feature | tfdist | Keras + tf.distribute |", "|---|---|---|"]
        for feature in theme.FEATURES:
            ours_text = describe_ours(ours[feature.name])
            peer_text = describe_peer(peers[feature.name])
            lines.append(f"| {feature.name} | {ours_text} | {peer_text} |")
        lines += ["", "</details>"]
    return "\n".join(lines)


def main() -> None:
    """Runs both, prints the table and writes it into the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readme", type=pathlib.Path, default=readme.README)
    arguments = parser.parse_args()
    names = [feature.name for theme in THEMES for feature in theme.FEATURES]
    ours = run_tfdist(names)
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        peers = dict(zip(names, pool.map(run_peer, names)))
    content = table(ours, peers)
    readme.update(arguments.readme, "equivalence", content)
    print(content)


if __name__ == "__main__":
    main()
