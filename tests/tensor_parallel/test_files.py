"""What a file would have of layers in parts."""

import keras
import pytest
import tensorflow as tf

from tfdist import tensor_parallel as parallel


def test_a_checkpoint_of_tensorflow_is_refused(tmp_path):
    keras.utils.set_random_seed(1)
    mesh, path = parallel.Mesh(), str(tmp_path / "checkpoint")
    part, whole = parallel.FeedForward(8, 4, mesh, name="part"), keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((4,)), part, whole])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    refused = "Save with `mesh.save_weights.*Received: a checkpoint with .*kernel"
    for saved in (model, model.optimizer, part.first.kernel, part.second):
        with pytest.raises(ValueError, match=refused):
            tf.train.Checkpoint(saved=saved).save(path)
    tf.train.Checkpoint(saved=whole).save(path)
