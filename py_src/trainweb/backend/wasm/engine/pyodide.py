"""The engine of the browser: drives `engine.js`, in a page's worker or in a notebook alike.

In a worker of the JavaScript package the engine is there already, with its threads, and Python uses
it. In a notebook the script and the kernels come out of the wheel: one thread, nothing to fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

from pyodide.code import run_js  # type: ignore[import-not-found]
from pyodide.ffi import JsException  # type: ignore[import-not-found]

from trainweb.backend.description import Description
from trainweb.backend.engine import Engine
from trainweb.errors import EngineError, LimitError

if TYPE_CHECKING:
    from typing_extensions import Buffer


REACH = 2**31
"""Address from which on Pyodide cannot copy."""


class PyodideEngine(Engine):
    """The kernels of this page.

    `js_engine` is an `Engine` of the JavaScript package, which every later PyodideEngine drives, too. `reproducible`
    builds have the same bytes on every machine; once the page has handed over its engine, the flag has no effect.
    """

    _adopted: ClassVar[Any] = None

    def __init__(self, js_engine: Any = None, *, reproducible: bool = False) -> None:
        if js_engine is not None:
            PyodideEngine._adopted = js_engine
        self._js = PyodideEngine._adopted
        if self._js is None:
            self._js = _load(reproducible)
        self.build = str(self._js.build)
        self.threads = int(self._js.threads)
        self.description = Description.parse(self._call("description"))

    def _call(self, name: str, *args: Any) -> Any:
        return _called(getattr(self._js, name), *args)

    def alloc(self, nbytes: int, *, zeroed: bool = False) -> int:
        return int(self._call("alloc", nbytes, zeroed))

    def free(self, ptr: int) -> None:
        self._call("free", ptr)

    def write(self, ptr: int, data: Buffer) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise EngineError("Only C-contiguous buffers can be written.")
        if view.nbytes:
            # One copy, out of Python's heap; lending the buffer to the script as a proxy costs more.
            self._call("view", ptr, view.nbytes).assign(_reachable(view.cast("B")))

    def read(self, ptr: int, nbytes: int) -> bytes:
        return bytes(_called(self._call("view", ptr, nbytes).to_bytes))

    def read_into(self, ptr: int, out: Buffer) -> None:
        view = memoryview(out)
        if not view.c_contiguous or view.readonly:
            raise EngineError("The output buffer must be C-contiguous and writable.")
        if view.nbytes:
            _called(self._call("view", ptr, view.nbytes).assign_to, view.cast("B"))

    def load_code(self, wasm: bytes) -> int:
        return int(self._call("loadCode", _reachable(memoryview(wasm)).obj))

    def unload_code(self, slot: int) -> None:
        self._call("unloadCode", slot)

    def profile(self, plan: int, times: int) -> None:
        self._call("profile", plan, times)

    def run(self, plan: int) -> int:
        return self._guarded(self._js.run, plan)

    def run_slice(self, plan: int, *, anew: bool, milliseconds: float) -> int:
        return self._guarded(self._js.runSlice, plan, anew, milliseconds)

    def run_batches(self, session: int, block: int, count: int) -> int:
        return self._guarded(self._js.runBatches, session, block, count, plan=lambda: self.last_plan(block))

    def written(self, plan: int) -> int:
        return int(self._call("written", plan))

    def call(self, name: str, *args: float) -> int:
        return int(self._call("call", name, *args))

    def _guarded(self, run: Any, *args: float, plan: Callable[[], int] | None = None) -> int:
        try:
            return int(run(*args))
        except JsException as e:
            raise self.trap_error(int(args[0]) if plan is None else plan(), str(e.message)) from None

    def bytes_in_use(self) -> int:
        return int(self._js.bytesInUse)

    def memory_size(self) -> int:
        return int(self._js.memoryBytes)


def _called(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except JsException as e:
        # Pyodide's error for a copy to an address that it takes for negative.
        raise (_too_far() if e.name == "RangeError" else EngineError(str(e.message))) from None


def _reachable(view: memoryview) -> memoryview:
    """`view`, or a copy of it, once it is certain that Pyodide copies these bytes and no others.

    It takes addresses from 2 GiB on for negative ones, and those count from the end of the memory. A page of
    the JavaScript package keeps Python's memory below; a notebook's is not ours.
    """
    owner: Any = view.obj
    array = getattr(owner, "__array_interface__", None)
    if array is None and not isinstance(owner, bytes):
        view = memoryview(bytes(view))
        owner = view.obj
    start, nbytes = (array["data"][0], owner.nbytes) if array else (id(owner), owner.__sizeof__())
    if start + nbytes > REACH:
        raise _too_far()
    return view


def _too_far() -> LimitError:
    return LimitError(
        "Python's memory has grown beyond 2 GiB, where Pyodide cannot copy from or to it. Nothing was copied. Start "
        "Python anew and use fewer weights, smaller batches, or checkpoints without the optimizer's state."
    )


def _load(reproducible: bool) -> Any:
    """Make an engine of the script and the kernels in the wheel."""
    folder = resources.files("trainweb.backend.wasm.engine")
    try:
        script = run_js((folder / "engine.js").read_text())
        build = str(script.pickBuild(reproducible))
        return script.createSync((folder / f"{build}.wasm").read_bytes(), build)
    except FileNotFoundError as e:
        raise EngineError(f"{e.filename} is missing from the package trainweb.") from None
    except JsException as e:
        raise EngineError(f"The kernels do not start in this browser: {e.message}") from None
