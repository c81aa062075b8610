"""Random faults in elastic jobs, one job after the other, each checked against one device.

python -m tests.elastic.chaos --seconds 600
python -m tests.elastic.chaos --seed 17        # that job once more
"""

from __future__ import annotations

import argparse
import pathlib
import pickle
import random
import tempfile
import time

from tests.elastic.test_faults import check, launch, train

EPOCHS = 8
SIGNALS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGSTOP")


def plan(seed: int, engines: list[str]) -> dict:
    """What happens in a job: at least one rank is left alone; new ranks may be killed too."""
    chance = random.Random(seed)
    count, restarts = chance.randint(2, 4), chance.choice([0, 0, 1, 2, 4])
    lost = chance.sample(range(count), chance.randint(1, count - 1))
    faults = [f"{rank}:{chance.choice(SIGNALS)}:after {chance.uniform(0, 9):.2f}" for rank in lost]
    for number in range(count, count + restarts):
        if chance.random() < 0.3:
            faults.append(f"{number}:SIGKILL:after {chance.uniform(0, 3):.2f}")
    all_wait = restarts >= len(faults) and not any("SIGTERM" in fault for fault in faults)
    return {
        "engine": chance.choice(engines),
        "count": count,
        "restarts": restarts,
        "least": chance.randint(1, count) if all_wait else 1,
        "faults": faults,
    }


def survives(seed: int, engines: list[str], expected: dict) -> bool:
    """Whether the job of a seed ends with the result of one device; prints what happened."""
    found = plan(seed, engines)
    print(f"seed {seed}: {found}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        slowly = {"EPOCHS": str(EPOCHS), "SECONDS": "0.1"}
        done = train(
            folder,
            found["engine"],
            *found["faults"],
            count=found["count"],
            least=found["least"],
            restarts=found["restarts"],
            **slowly,
        )
        said = [line for line in done.stderr.splitlines() if line.startswith("tfdist run")]
        print("\n".join(f"  {line}" for line in said), flush=True)
        try:
            assert done.returncode == 0, f"status {done.returncode}"
            left = sorted(int(path.stem[5:]) for path in folder.glob("rank-*.pickle"))
            assert left, "no rank has come to the end"
            check(folder, left, expected)
        except AssertionError as error:
            print(f"  FAILED (seed {seed}): {error}\n{done.stderr[-6000:]}", flush=True)
            return False
    print(f"  as on one device, ranks {left}, {time.monotonic() - begun:.0f} s", flush=True)
    return True


def main() -> int:
    """Runs jobs until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="only the job of this seed")
    parser.add_argument("--engines", nargs="+", default=["multi_worker", "horovod"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        launch(folder, "tests.elastic.job", name, EPOCHS=str(EPOCHS))
        expected = pickle.loads((folder / "rank-0.pickle").read_bytes())
    first = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    failed, end = [], time.monotonic() + arguments.seconds
    for seed in range(first, first + 1 if arguments.seed is not None else first + 10**6):
        if time.monotonic() > end:
            break
        if not survives(seed, arguments.engines, expected):
            failed.append(seed)
    print(f"failed: seeds {failed}" if failed else "nothing failed", flush=True)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
