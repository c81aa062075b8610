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


def test_lora_and_quantization_are_refused():
    keras.utils.set_random_seed(1)
    mesh = parallel.Mesh()
    numbers, words = keras.Input((4,)), keras.Input((3,), dtype="int32")
    dense, forward = parallel.Dense(4, mesh), parallel.FeedForward(8, 4, mesh)
    embedding, attention = parallel.Embedding(6, 4, mesh), parallel.MultiHeadAttention(2, 2, mesh)
    x = embedding(words)
    model = keras.Model([numbers, words], [forward(dense(numbers)), attention(x, x)])
    heads = [attention.query_dense, attention.key_dense, attention.value_dense]
    before = [variable.path for variable in model.variables]
    for layer in (dense, forward.first, forward.second, embedding, *heads, attention.output_dense):
        with pytest.raises(ValueError, match=f"Received: enable_lora of '{layer.name}'"):
            layer.enable_lora(2)
        with pytest.raises(NotImplementedError, match=f"Received: quantize of '{layer.name}'"):
            layer.quantize("int8")
    assert [variable.path for variable in model.variables] == before


def test_no_file_leaves_variables_out(tmp_path):
    keras.utils.set_random_seed(1)
    mesh = parallel.Mesh()
    forward = parallel.FeedForward(8, 4, mesh)
    model = keras.Sequential([keras.Input((4,)), forward])
    keras.layers.Dense.enable_lora(forward.first, 2)
    with pytest.raises(ValueError, match="shorter"):
        mesh.save_weights(model, tmp_path / "model.weights.h5")
