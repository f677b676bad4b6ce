"""The dynamo exporter's notes about embeddings: rows without a gradient, and missing gradients."""

import numpy as np
import pytest
from onnx import ModelProto, helper
from tests.conformance.models import make_model, normal

from trainweb.artifacts import OptimType, build_artifacts
from trainweb.errors import GradientError
from trainweb.session.training_session import TrainingSession

TABLE = normal(6, 3, seed=1)
WORDS = {1: np.array([2, 5, 2, 0, 1]), 2: np.array([[2, 5], [2, 0], [1, 1]])}
CALL = "%embedding : [num_users=1] = call_function[target=torch.ops.aten.{}](args = ({}), kwargs = {{{}}})"


def model(note: str, rank: int = 2) -> ModelProto:
    """loss = sum of squares of the rows of a table; the same table multiplies them, as a tied head does."""
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["rows"], "embedding"),
        helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["scores"], "head"),
        helper.make_node("ReduceSumSquare", ["scores"], ["loss"], "sum", keepdims=0),
    ]
    held = {"table": TABLE}
    file = make_model(nodes, {"words": list(WORDS[rank].shape)}, {"loss": []}, held, opset=17)
    file.graph.input[0].type.tensor_type.elem_type = 7
    entry = file.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.fx_node", note
    return file


def moved(file: ModelProto, words: np.ndarray) -> np.ndarray:
    """By how much the table moves in a step at a rate of one."""
    with TrainingSession.from_model(file, requires_grad=["table"], loss=None, optimizer=OptimType.SGD) as session:
        session.set_learning_rate(1.0)
        session.train_step({"words": words.astype(np.int64)})
        session.optimizer_step()
        return TABLE.astype(float) - session.get_parameter("table")


def expected(words: np.ndarray, padding: int | None) -> np.ndarray:
    """The gradient of the table in float64: of the head, and of the rows except the padding word's."""
    table, ids = TABLE.astype(float), words.ravel()
    scores = table[ids] @ table.T
    gradient = 2 * scores.T @ table[ids]
    of_rows = 2 * scores @ table
    of_rows[ids == padding] = 0
    np.add.at(gradient, ids, of_rows)
    return gradient


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(
    ("arguments", "named", "padding"),
    [
        ("%p_table, %words, 2", "", 2),
        ("%p_table, %words, 0", "", 0),
        ("%p_table, %words, 1, False, True", "", 1),
        ("%p_table, %words", "padding_idx: 2", 2),
        ("%p_table, %words", "", None),
        ("%p_table, %words, -1, False, True", "", None),
        ("%p_table, %words", "scale_grad_by_freq: False", None),
    ],
)
def test_the_row_of_the_padding_word_gets_no_gradient_where_it_is_read(
    arguments: str, named: str, padding: int | None, rank: int
) -> None:
    file = model(CALL.format("embedding.default", arguments, named), rank)
    np.testing.assert_allclose(moved(file, WORDS[rank]), expected(WORDS[rank], padding), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "note",
    [
        CALL.format("embedding.default", "%p_table, %words, -1, True", ""),
        CALL.format("embedding.default", "%p_table, %words", "scale_grad_by_freq: True"),
        CALL.format("embedding_bag.padding_idx", "%p_table, %words, %arange, True, 0, False, None, False, 1", ""),
        CALL.format("_embedding_bag.default", "%p_table, %words, %arange, True", ""),
    ],
)
def test_a_gradient_by_the_frequency_of_words_is_refused(note: str) -> None:
    with pytest.raises(GradientError, match=r"scale_grad_by_freq=True of an embedding \(export it without"):
        build_artifacts(model(note), requires_grad=["table"])


def test_padding_of_a_bag_is_in_its_nodes() -> None:
    """The exporter leaves those words out of the sum, which has the right gradient."""
    note = CALL.format("embedding_bag.padding_idx", "%p_table, %words, %arange, False, 0, False, None, False, 2", "")
    np.testing.assert_allclose(moved(model(note), WORDS[2]), expected(WORDS[2], None), rtol=1e-5, atol=1e-5)
