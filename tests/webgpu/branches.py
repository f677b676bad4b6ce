"""Short circuits in the loops of shaders: SwiftShader's compiler takes twice as long for each one more in a loop."""

import re
from collections.abc import Iterator
from functools import cache

MOST = 10
"""In a loop, with the functions that it calls: milliseconds."""
BRACKET, LOOP, CALL = re.compile(r"[(){}]"), re.compile(r"\b(?:for|while|loop)\b"), re.compile(r"\b(\w+)\(")
FUNCTION = re.compile(r"\bfn (\w+)\(")


def _end(text: str, at: int) -> int:
    """Behind the first block from a place on."""
    depth = 0
    for bracket in BRACKET.finditer(text, at):
        depth += 1 if bracket[0] in "({" else -1
        if bracket[0] == "}" and depth == 0:
            return bracket.end()
    raise AssertionError("a block without an end")


def _loops(text: str) -> Iterator[str]:
    at = 0
    while loop := LOOP.search(text, at):
        at = _end(text, loop.start())
        yield text[loop.start() : at]


@cache
def most_in_a_loop(shader: str) -> int:
    """The most short circuits of a loop."""
    functions = {name[1]: shader[name.end() : _end(shader, name.start())] for name in FUNCTION.finditer(shader)}

    def count(part: str) -> int:
        called = [functions[name] for name in CALL.findall(part) if name in functions]
        return part.count("&&") + part.count("||") + sum(map(count, called))

    return max((count(loop) for body in functions.values() for loop in _loops(body)), default=0)
