"""Texts of errors of the GPU, which only a page raises."""

from __future__ import annotations

from trainweb.errors import DeviceError, FeedError, ModelError
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
