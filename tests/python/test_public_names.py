"""`dir` of every public module shows only public names, all of them with a docstring."""

import inspect
import types

import trainweb
import trainweb.compat.gradient_graph


def public_modules() -> dict[str, types.ModuleType]:
    """`trainweb`, and the modules that are public names of public modules."""
    found: dict[str, types.ModuleType] = {}
    waiting = [trainweb, trainweb.compat.gradient_graph]
    while waiting:
        module = waiting.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            waiting += [v for n in dir(module) if inspect.ismodule(v := getattr(module, n))]
    return found


def test_public_modules_show_public_names_alone() -> None:
    modules = public_modules()
    assert {"trainweb.onnxblock.optim", "trainweb.schedules", "trainweb.compat.onnxruntime"} <= set(modules)
    for name, module in modules.items():
        assert name.startswith("trainweb"), f"{name} is another package's"
        shown = dir(module)
        assert shown, name
        for attribute in shown:
            assert not attribute.startswith("_") or attribute == "__version__", f"{name} shows {attribute}"
            value = getattr(module, attribute)
            # Aliases of types, which have no home, are public where `__all__` names them.
            home = getattr(value, "__module__", None) or name
            is_alias = home == "typing" and attribute in getattr(module, "__all__", ())
            assert home.startswith("trainweb") or is_alias, f"{name} shows {attribute} of {home}"
            if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
                assert inspect.getdoc(value), f"{name}.{attribute} has no docstring"
