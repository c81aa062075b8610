"""Where no choice is left: one device, if the model fits there."""

from tfdist.plan.candidate import ONE_DEVICE, Candidate
from tfdist.plan.candidates import recommend
from tfdist.plan.prediction import Prediction

GB = 1e9


def needing(memory, workers=1, candidate=ONE_DEVICE):
    return Prediction(candidate, workers, 64, 1.0, 1.0, 0.0, memory, workers)


def of_two(memory):
    return [needing(memory, 2, Candidate("horovod"))]


def test_nothing_fits_where_one_device_does_not():
    needed = "one device needs 15 GB for weights, gradients, optimizer and activations, and has 12"
    told = recommend(needing(15 * GB), [], 0.5, 12 * GB)
    assert told.workers == 0
    assert told.reason.startswith(f"Nothing fits: {needed} GB; no number of workers above 1")
    told = recommend(needing(15 * GB), of_two(13 * GB), 0.5, 12 * GB)
    assert told.workers == 0
    assert told.reason.endswith("has 12 GB; no choice for 2 workers fits in 12 GB.")
    # Two workers would do, but an epoch has too few updates.
    told = recommend(needing(15 * GB), of_two(11 * GB), 0.5, 12 * GB, samples=5)
    assert (told.workers, told.code) == (0, None)
    assert "for which an epoch has 20 updates" in told.reason


def test_one_device_stays_where_it_fits():
    told = recommend(needing(15 * GB), of_two(17 * GB), 0.5, 16 * GB)
    assert (told.workers, told.code) == (1, None)
    assert told.reason == "Stay on one device: no choice for 2 workers fits in 16 GB."
    told = recommend(needing(15 * GB), [], 0.5, 16 * GB)
    assert told.workers == 1 and told.reason.startswith("Stay on one device: no number of")
