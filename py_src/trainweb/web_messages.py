"""Texts of errors that only JavaScript raises, most of them about the GPU."""

from __future__ import annotations

from trainweb.errors import DeviceError, FeedError, ModelError, SessionError, StorageError, UnsupportedError
from trainweb.message import Message


def _device(text: str) -> Message:
    """Return a message about a GPU. It names what works without one."""
    return Message(DeviceError, f'{text} device: "wasm" trains everywhere.')


NO_WEBGPU = _device(
    "There is no WebGPU here. Chrome and Edge have it from 113, Safari from 26, Firefox from 141. For Node, the npm "
    "package webgpu has it: set env.webgpu.gpu."
)
INSECURE_WEBGPU = _device("Pages have WebGPU only with a secure origin: https:// or localhost.")
NO_GPU_ADAPTER = _device("This browser offers no WebGPU adapter. Chrome on Linux may need --enable-unsafe-webgpu.")
NO_DEVICE = _device("The WebGPU adapter gives no device: {message}")
SOFTWARE_ADAPTER = _device("The WebGPU adapter '{adapter}' computes in software, which is slow.")
DEVICE_LIMIT = _device("'{what}' takes {needed} bytes at once; {name} of this GPU is {offered}.")
DEVICE_LOST = _device(
    "The GPU was lost after step {step} ({reason}): {message} Parameters on it are gone; continue from a checkpoint."
)
DEVICE_ERROR = _device("The GPU reports an error: {message} Parameters on it may be wrong; continue from a checkpoint.")
LOST_IN_FIT = Message(DeviceError, "{error} The last checkpoint is of step {checkpoint}.")
DEVICE_MEMORY = _device("The GPU has no memory for {nbytes} bytes of '{what}': {message}{help}")
SHADER_REFUSED = _device("The GPU refuses the shader '{template}' of {node}: {message} Please report this.")
SLOW_SHADER = _device("The GPU's compiler has worked for a minute or more. The shader of {node} is not ready.")
WIDE_FEED = Message(
    FeedError,
    "'{name}' has {value} at position {position}; a GPU takes integers of 32 bits. device: \"wasm\" takes all.",
)
GPU_PLAN_MALFORMED = Message(ModelError, "The plan for the GPU is malformed: {what}. Compile it again.")

# Data, sessions and checkpoints.

NO_BRIDGE = Message(
    SessionError,
    "No connection to {url}: does `python -m trainweb.flower` run there, and may pages of this site connect?",
)
NO_WEBSOCKET = Message(SessionError, "No WebSocket is here: set globalThis.WebSocket, in Node 20 to that of 'ws'.")
BRIDGE_CLOSED = Message(SessionError, "The connection to the bridge ended (code {code}): {reason}.")
BAD_BRIDGE = Message(SessionError, "The bridge sent an unexpected message: {fault}.")
NOT_IN_BUNDLE = Message(
    SessionError,
    "The bundle was not compiled for {what}, and it contains no models to compile from. Make the bundle with "
    "`trainweb compile`, which includes the models, or create the session from its artifacts.",
)
ONLY_ON_CPU = Message(UnsupportedError, "The bundle has plans of this step for the CPU only.")
NO_TENSOR = Message(FeedError, "{name!r} is {actual}: give a tensor, as 'readImage' makes of a picture, or arrays.")
INEXACT_NUMBER = Message(FeedError, "{name!r} has {value}, which float32 cannot hold: give bigints or a typed array.")
NOT_NUMBERS = Message(
    FeedError,
    "Row {row} of {name!r} has {actual}, expected {expected}. A column has only numbers, booleans or dates (null is a "
    "missing one), only bigints, or only texts (for a missing one the text that 'missing' filled in).",
)
DISPOSED_VALUE = Message(
    FeedError, "Row {position} of the data has a disposed tensor as {name!r}: keep tensors until the fit ends."
)
METRIC_TYPE = Message(FeedError, "A metric cannot compare values of type {dtype}: give float32, int64 or int32.")
NO_STORAGE = Message(
    StorageError,
    "There is no storage for checkpoints here, neither a private file system nor IndexedDB ({reason}). "
    "Keep the bytes that save() returns.",
)
NO_STORE_FOLDER = Message(StorageError, "Outside of browsers name a folder: new CheckpointStore('checkpoints').")
NO_BACKEND = Message(
    StorageError,
    "There is no storage for checkpoints of backend {backend!r} here ({reason}). "
    "Leave out the backend to use another, or keep the bytes that save() returns.",
)
UNREAD_PICTURES = Message(
    UnsupportedError,
    "Reading a picture needs a browser, which decodes it. In Node, Deno and Bun give its pixels as a Tensor.",
)
