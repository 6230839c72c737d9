"""Docstrings of public code that passes arrays say their shapes, axis by axis: `float32 [rows, 3, height, width]`."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from conftest import REPOSITORY

PACKAGE = REPOSITORY / "ortdeploy"
SHAPE = re.compile(r"\[(?:[\w ./+*…]+)(?:, [\w ./+*…]+)*\]")
ARRAYS = {"Array", "ndarray", "NDArray"}

ANY_RANK = {
    "adapter_writer.write_adapter": "parameters of an adapter, as its graph has them",
    "fed_values.as_array": "its argument `shape` says which",
    "generate.how_of_row": "takes any columns of rows, by the names of options",
    "generation.GenaiSession.run": "is never run",
    "numpy_archives.Archive.load": "a file holds arrays of any shape",
    "numpy_archives.read_npz": "a file holds arrays of any shape",
    "numpy_files.map_npy": "a file holds an array of any shape",
    "numpy_archives.write_npz": "takes arrays of any shape",
    "onnx_data.read_tensor": "a file holds a tensor of any shape",
    "run_limit.LimitedSession.run": "passes on what its session takes and gives",
    "samples.archive": "sample arrays of any shape",
    "trial_run.synthetic_array": "its argument `shape` says which",
}
"""Public functions that do not know their shapes, each with the reason."""


class Documented(NamedTuple):
    """A public function or method that passes arrays: its name with its module's, and the docstrings about it."""

    name: str
    texts: tuple[str, ...]


def passes_arrays(function: ast.FunctionDef) -> bool:
    """Whether a function takes or returns arrays, alone or in something else, by its annotations."""
    given = function.args
    arguments = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    annotations = (*(one.annotation for one in arguments if one is not None), function.returns)
    names = {
        getattr(node, "id", getattr(node, "attr", ""))
        for annotation in annotations
        if annotation is not None
        for node in ast.walk(annotation)
    }
    return bool(names & ARRAYS)


def of_module(path: Path) -> list[Documented]:
    """The public code of a module; what a protocol or a base of it says of a method holds for its implementations."""
    text = path.read_text(encoding="utf-8")
    body = ast.parse(text).body if any(name in text for name in ARRAYS) else []
    bases = {node.name: {*map(ast.unparse, node.bases)} for node in body if isinstance(node, ast.ClassDef)}
    general = {name for name, own in bases.items() if "Protocol" in own}.union(*bases.values())
    inherited = [node for node in body if isinstance(node, ast.ClassDef) and node.name in general]
    told = {one.name.rpartition(".")[2]: one.texts for one in of_body(inherited, path.stem, ())}
    return [
        one._replace(texts=(*one.texts, *told.get(one.name.rpartition(".")[2], ())))
        for one in of_body(body, path.stem, ())
    ]


def of_body(body: Sequence[ast.stmt], name: str, texts: tuple[str, ...]) -> Iterator[Documented]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        own = (*texts, ast.get_docstring(node) or "")
        if isinstance(node, ast.ClassDef):
            yield from of_body(node.body, f"{name}.{node.name}", own)
        elif passes_arrays(node):
            yield Documented(f"{name}.{node.name}", own)


def test_public_code_that_passes_arrays_says_their_axes() -> None:
    found = [one for path in sorted(PACKAGE.rglob("*.py")) for one in of_module(path)]
    assert len(found) > 60
    assert {one.name for one in found if not any(map(SHAPE.search, one.texts))} == set(ANY_RANK)
