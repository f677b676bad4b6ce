"""Training of a benchmark's model on the GPU and on the kernels, step by step."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from tests.webgpu.host import SEGMENTS, GpuHost
from tests.webgpu.networks import RATE, SMALL, SPECIAL, networks

from trainweb import lora, quantize
from trainweb.artifacts import Artifacts, LossType, build_artifacts
from trainweb.ir.layout import STATE
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Tensor
from trainweb.model.reader import read_model
from trainweb.onnxblock.optim import AdamW
from trainweb.training.core import SessionCore
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import TRAIN

Batches = list[dict[str, Tensor]]


def core_of(made: Artifacts) -> SessionCore:
    """A session of artifacts."""
    graphs = (read_model(model) for model in (made.training_model, made.eval_model, made.optimizer_model))
    return SessionCore(CheckpointState.load_checkpoint(made.checkpoint), *graphs)


@contextmanager
def open_model(name: str, batches: int, *, is_small: bool = False) -> Iterator[tuple[SessionCore, Batches]]:
    """A session of a benchmark's model with AdamW, and its batches."""
    net = ((SMALL | SPECIAL) if is_small else networks.MODELS)[name]()
    model = onnx.shape_inference.infer_shapes(net.model())
    trained = [p.name for p in net.parameters if p.trainable]
    frozen = [p.name for p in net.parameters if not p.trainable]
    optimizer = AdamW(eps=1e-8, weight_decay=0.0)
    core = core_of(build_artifacts(model, trained, frozen, LossType.CrossEntropyLoss, optimizer))
    core.set_learning_rate(RATE)
    yield core, batches_of(core, net, batches)
    core.release()


@contextmanager
def open_adapters(net: networks.Network, bits: int = 32, batches: int = 1) -> Iterator[tuple[SessionCore, Batches]]:
    """A session that trains adapters of a language model, whose weights may have few bits, and its batches."""
    model = onnx.shape_inference.infer_shapes(net.model()).SerializeToString()
    model = model if bits == 32 else quantize(model, bits)
    core = core_of(lora.inject(model, rank=8).build_artifacts(loss=LossType.CrossEntropyLoss, optimizer=AdamW()))
    core.set_learning_rate(RATE)
    yield core, batches_of(core, net, batches)
    core.release()


def batches_of(core: SessionCore, net: networks.Network, count: int) -> Batches:
    """Feeds of so many steps."""
    xs, ys = networks.batches(net, count, 1)
    feeds = []
    for x, y in zip(xs, ys, strict=True):
        arrays = {n: (y if "label" in n else x) for n in core.inputs["train"]}
        typed = {n: np.ascontiguousarray(a, core.inputs["train"][n].dtype) for n, a in arrays.items()}
        feeds.append({n: Tensor(n, str(a.dtype), a.shape, a.tobytes()) for n, a in typed.items()})
    return feeds


def types_of(feeds: dict[str, Tensor]) -> dict[str, TensorType]:
    return {n: TensorType(t.dtype, t.shape) for n, t in feeds.items()}


def train_on_kernels(core: SessionCore, batches: Batches, steps: int) -> list[float]:
    """The losses of so many steps."""
    loss = core.outputs["train"][0]
    losses = []
    for k in range(steps):
        found = core.step(TRAIN, batches[k % len(batches)])[loss]
        losses.append(float(np.frombuffer(found.data, np.float32)[0]))
        core.optimizer_step()
        core.lazy_reset_grad()
    return losses


def train_on_gpu(core: SessionCore, batches: Batches, steps: int) -> list[float]:
    """The same on the GPU, from the session's contents."""
    host = GpuHost(list(core.host.sizes))
    try:
        for segment in SEGMENTS:
            if core.host.sizes[segment] and segment not in (0, 1, 7, 8):
                host.write(segment, 0, core.host.read_segment(segment, 0, core.host.sizes[segment]))
        host.head.write_segment(STATE, 0, core.host.read_segment(STATE, 0, core.host.sizes[STATE]))
        train = host.load(core.models.compile_step(TRAIN, types_of(batches[0]), True, target="webgpu"))
        update = host.load(core.models.compile_optimizer(target="webgpu"))
        losses = []
        for k in range(steps):
            host.run(train, batches[k % len(batches)])
            losses.append(float(host.output(train, core.outputs["train"][0])))
            host.run(update, {})
        return losses
    finally:
        host.release()
