"""Which arguments of the public calls of the page are objects with names that are known, from TypeDoc's description."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from .server import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import typedoc

CLASS, INTERFACE, PROPERTY, ALIAS = 128, 256, 1024, 2097152
"""TypeDoc's kinds of declarations."""
DEPTH = 4
"""Of options within options."""

Type = dict[str, Any]


class Description:
    """TypeDoc's description of the package."""

    def __init__(self) -> None:
        self.root = typedoc.describe()
        self.by_id: dict[int, Any] = {}
        self._index(self.root)

    def _index(self, found: Any) -> None:
        if isinstance(found, dict):
            if "id" in found and "kind" in found:
                self.by_id[found["id"]] = found
            for value in found.values():
                self._index(value)
        elif isinstance(found, list):
            for value in found:
                self._index(value)

    def options(self) -> dict[str, list[str]]:
        """The names that an argument may have, by `call(argument)`, `.name` and `[]` of what is in it."""
        found: dict[str, set[str]] = {}
        for call, parameter in self._parameters():
            for path, names in self._walk(f"{call}({parameter['name']})", parameter["type"]):
                found.setdefault(path, set()).update(names)
        return {path: sorted(names) for path, names in sorted(found.items())}

    def composites(self) -> dict[str, list[str]]:
        """The options of each argument that may be arrays or objects."""
        found: dict[str, set[str]] = {}
        for call, parameter in self._parameters():
            names = {name for name, kind in self._properties(parameter["type"]).items() if self._is_composite(kind)}
            if names:
                found.setdefault(f"{call}({parameter['name']})", set()).update(names)
        return {path: sorted(names) for path, names in sorted(found.items())}

    def _is_composite(self, kind: Type, seen: tuple[int, ...] = ()) -> bool:
        match kind["type"]:
            case "array" | "tuple":
                return True
            case "typeOperator":
                return self._is_composite(kind["target"], seen)
            case "union" | "intersection":
                return any(self._is_composite(part, seen) for part in kind["types"])
            case "reflection":
                return "signatures" not in kind["declaration"]
            case "reference":
                target = self.by_id.get(kind["target"]) if isinstance(kind.get("target"), int) else None
                if target is None:
                    return kind["name"] in ("Readonly", "Partial", "Record", "Iterable")
                if target["kind"] == ALIAS and target["id"] not in seen:
                    return self._is_composite(target["type"], (*seen, target["id"]))
                return bool(target["kind"] == INTERFACE) and "signatures" not in target
            case _:
                return False

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        for module in self.root["children"]:
            for thing in module["children"]:
                calls = [(thing["name"], thing)]
                if thing["kind"] == CLASS:
                    calls += [(f"{thing['name']}.{member['name']}", member) for member in thing.get("children", ())]
                for name, call in calls:
                    for signature in call.get("signatures", ()):
                        for parameter in signature.get("parameters", ()):
                            yield name, parameter

    def _walk(self, path: str, kind: Type, depth: int = 0) -> Iterator[tuple[str, set[str]]]:
        properties = self._properties(kind)
        if properties:
            yield path, set(properties)
        element = self._element(kind)
        inner = {f".{name}": value for name, value in properties.items()} | ({"[]": element} if element else {})
        for name, value in inner.items():
            if depth < DEPTH:
                yield from self._walk(path + name, value, depth + 1)

    def _properties(self, kind: Type, seen: tuple[int, ...] = ()) -> dict[str, Type]:
        """Names with their types, if it is an object of data with known names, or a choice that has some."""
        match kind["type"]:
            case "reference":
                target = self.by_id.get(kind["target"]) if isinstance(kind.get("target"), int) else None
                if target is None:
                    is_wrapper = kind["name"] in ("Readonly", "Partial", "Required")
                    return self._properties(kind["typeArguments"][0], seen) if is_wrapper else {}
                if target["id"] in seen:
                    return {}
                if target["kind"] == ALIAS:
                    return self._properties(target["type"], (*seen, target["id"]))
                return self._declared(target) if target["kind"] == INTERFACE else {}
            case "reflection":
                return self._declared(kind["declaration"])
            case "intersection" | "union":
                return {n: t for part in kind["types"] for n, t in self._properties(part, seen).items()}
            case _:
                return {}

    @staticmethod
    def _declared(declaration: Any) -> dict[str, Type]:
        children = declaration.get("children", ())
        is_open = declaration.get("indexSignatures") or declaration.get("signatures")
        if is_open or any(child["kind"] != PROPERTY for child in children):
            return {}
        return {child["name"]: child["type"] for child in children}

    def _element(self, kind: Type) -> Type | None:
        match kind["type"]:
            case "array":
                element: Type = kind["elementType"]
                return element
            case "typeOperator":
                return self._element(kind["target"])
            case "union":
                return next(filter(None, map(self._element, kind["types"])), None)
            case _:
                return None


if __name__ == "__main__":
    print(json.dumps(Description().options(), indent=1))
