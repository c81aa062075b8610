"""What an answer says besides its figures."""

import keras
import pytest

from tfdist.plan import question


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "model.keras"
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.save(path)
    return str(path)


def notes(path, **options):
    asked = question.Question(path, bandwidth=1e9, device_step=1.0, **options)
    found = question.answer(asked)
    return {p.workers for p in found.predictions}, "\n".join(found.notes)


def test_workers_without_a_sample_are_left_out_with_a_note(saved):
    counts, found = notes(saved, batch_size=4, strong=True, workers=[2, 4, 8, 16])
    assert counts == {2, 4}
    assert "Left out: 8, 16 workers, as --strong divides one batch among them" in found
    _, found = notes(saved, batch_size=4, strong=True, workers=range(2, 30))
    assert "Left out: 5, 6, 7, 8, ..., 29 workers" in found
    assert "Left out" not in notes(saved, batch_size=16, strong=True, workers=[2, 16])[1]


def test_workers_with_few_updates_are_shown_with_a_note(saved):
    counts, found = notes(saved, batch_size=4, samples=1000, workers=[2, 8, 16, 64])
    assert counts == {2, 8, 16, 64}
    expected = "Not recommended: 16, 64 workers, as an epoch of 1,000 samples has less than 20"
    assert expected in found
    assert "Not recommended" not in notes(saved, batch_size=4, workers=[2, 64])[1]
