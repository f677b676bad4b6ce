"""Which recorded models train on the GPU: families of language models, and the zoo of docs/models.md.

python -m tests.webgpu.models > tests/golden/webgpu/models.txt
"""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tests.lora import test_families as families
from tests.webgpu.branches import MOST, most_in_a_loop
from tests.zoo.recording import load, names
from tests.zoo.replay import build, feed_of

from trainweb.errors import TrainwebError, UnsupportedError
from trainweb.ir.shapes import TensorType
from trainweb.session.training_session import TrainingSession
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import TRAIN

GOLDEN = Path(__file__).parents[1] / "golden" / "webgpu" / "models.txt"


def of_family(name: str) -> tuple[TrainingSession, Callable[[str], np.ndarray]]:
    """A session of a family of language models, and its feeds."""
    family = families.load(name)
    frozen = [re.escape(n) for n in family.about["frozen"]] or None
    model = family.files["model.onnx"]
    session = TrainingSession.from_model(model, optimizer="SGD", frozen_params=frozen, **families.LOSS)
    return session, lambda feed: family.truth.get(feed, family.truth["labels"])


def of_zoo(name: str, kind: str = "SGD") -> tuple[TrainingSession, Callable[[str], np.ndarray]]:
    """A session of a model of the zoo with an optimizer, and its feeds."""
    recording = load(name)
    made = build(recording, "plain" if "plain" in recording.files else next(iter(recording.files)), kind)
    state = CheckpointState.load_checkpoint(made.checkpoint)
    session = TrainingSession(state, made.training_model, made.eval_model, made.optimizer_model)
    return session, lambda feed: feed_of(recording, feed)


def rows() -> Iterator[str]:
    """A line for each model that does not train on the GPU, or not on software, and how many do."""
    for title, all_of, open_one in (("families", families.NAMES, of_family), ("zoo", names(), of_zoo)):
        fit = 0
        for name in all_of:
            try:
                session, feed = open_one(name)
            except TrainwebError as error:
                yield f"{title}/{name}: {error}"
                continue
            with session:
                feeds = {n: np.asarray(feed(n)) for n in session.input_names()}
                types = {n: TensorType(str(x.dtype), x.shape) for n, x in feeds.items()}
                try:
                    body = session._core.models.compile_step(TRAIN, types, True, target="webgpu").body
                    fit += 1
                    most = max(map(most_in_a_loop, body.texts if body else ()), default=0)
                    if most > MOST:
                        yield f"{title}/{name}: a loop has {most} short circuits"
                except UnsupportedError as error:
                    yield f"{title}/{name}: {str(error).partition('GPU: ')[2].partition(', for which')[0]}"
        yield f"{fit} of {len(all_of)} {title}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n".join(rows()))
