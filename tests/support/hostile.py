"""Documents from strangers: one change at a time, to values that break readers."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, -(2**63), 2**63, 10**40, 0.5, -0.0, 1e308, "", "x", "../../etc/passwd", "/etc/passwd", "a\0b",
    "\ud800", "\x1b[2J", "x" * 5000, "*", "..", "s3://bucket/key", "file:///etc/passwd", [], {}, [[]], {"": None}, [None], {"step": "run-job"},
    "first", "all", "next", "pad", "drop", "keep", "csv", "npz", "CUDAExecutionProvider", "jobs.run.output.path=../x", "a=&a [*a]", "run", "other",
]  # fmt: skip


def places(node: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, inner ones too."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*way, key)
        yield from places(child, (*way, key))


def mutate(document: Any, pick: Callable[[int], int]) -> Any:
    """One change: another value, a key or item less, or one more."""
    document = copy.deepcopy(document)
    ways = list(places(document))
    way = ways[pick(len(ways))]
    node = document
    for key in way[:-1]:
        node = node[key]
    kind = pick(4)
    if kind == 0:
        del node[way[-1]]
    elif kind == 1 and isinstance(node, dict):
        node[("zz", "path", "", "retry")[pick(4)]] = HOSTILE[pick(len(HOSTILE))]
    elif kind == 1:
        node.append(copy.deepcopy(node[pick(len(node))]))
    else:
        node[way[-1]] = HOSTILE[pick(len(HOSTILE))]
    return document
