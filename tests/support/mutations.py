"""Changes one line of a room at a time and says which changes its tests do not notice: `python -m support.mutations`.

`--room ledger --count 20 --seed 3` draws 20 changes among all of `ortdeploy/ledger`. Each is made in a copy of the
repository, where the tests of the room run, those named for the module, and those that `--tests` names. Run it from `tests`.
"""

import argparse
import ast
import copy
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "site")
_OTHERS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_LIMIT = 10
"""Numbers from here on are limits, of which one that is higher by one is as good."""
_PATIENCE = 900
"""Seconds for the tests of one change; those that take longer have noticed it."""


@dataclass(frozen=True)
class Mutation:
    """A change of a file: the text from one place to another becomes a new one. `what` says it in words."""

    path: Path
    line: int
    start: int
    end: int
    new: str
    what: str

    def made_in(self, source: bytes) -> bytes:
        """Return the file with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}:{self.line} {self.what}"


def mutations(path: Path) -> Iterator[Mutation]:
    """Yield every change of a file that can be drawn."""
    source = path.read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    tree = ast.parse(source)
    passed_over = {id(inner) for node in ast.walk(tree) for one in _annotations(node) for inner in ast.walk(one)}
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        for old, new, what in (*_changes_of_expressions(node), *_changes_of_blocks(node)):
            first, last = old[0], old[-1]
            yield Mutation(
                path,
                first.lineno,
                begins[first.lineno - 1] + first.col_offset,
                begins[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0),
                new,
                what,
            )


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node has that is not run, or only shown or forbidden: types, and whether a record is frozen."""
    for name in ("annotation", "returns"):
        if isinstance(one := getattr(node, name, None), ast.AST):
            yield one
    if isinstance(node, ast.If | ast.Assign) and ast.unparse(node).startswith(("if TYPE_CHECKING:", "TYPE_CHECKING =")):
        yield node
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
        yield node
    if isinstance(node, ast.ClassDef):
        yield from node.keywords


Change = tuple[Sequence["ast.expr | ast.stmt"], str, str]
"""The nodes that are replaced, the text that takes their place, and what that is."""


def _changes_of_expressions(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHERS:
            other = copy.copy(node)
            other.ops = [_OTHERS[type(op)]()]
            yield [node], f"({ast.unparse(other)})", f"{ast.unparse(node)} -> {ast.unparse(other)}"
        case ast.BoolOp(op=op):
            swapped = copy.copy(node)
            swapped.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield [node], f"({ast.unparse(swapped)})", f"{ast.unparse(node)} -> {ast.unparse(swapped)}"
        case ast.Constant(value=bool(value)):
            yield [node], str(not value), f"{value} -> {not value}"
        case ast.Constant(value=int(value)):
            for new in (value + 1, value - 1) if abs(value) < _LIMIT else (value * 10, value // 10):
                yield [node], f"({new})", f"{value} -> {new}"
        case ast.Expr(value=ast.Call(func=func)) if not ast.unparse(func).startswith("log."):
            yield [node], "pass", f"without {ast.unparse(node)}"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield [node], f"bool({ast.unparse(operand)})", f"without not: {ast.unparse(node)}"


def _changes_of_blocks(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.If):
        yield node.body, "pass", f"without the branch of if {ast.unparse(node.test)}"
    body = getattr(node, "body", [])
    for one, two in itertools.pairwise(body) if isinstance(body, list) else ():
        texts = [ast.unparse(part) for part in (one, two)]
        if any("sync" in text for text in texts) and all(isinstance(part, ast.Expr) for part in (one, two)):
            yield [one, two], "; ".join(reversed(texts)), f"swapped: {texts}"


def tests_for(path: Path, room: str, more: Sequence[str]) -> list[str]:
    """Return the tests of a room, those named for a module, and others that are asked for."""
    named = {str(one.relative_to(REPOSITORY)) for one in (REPOSITORY / "tests").rglob(f"test_*{path.stem}*.py")}
    return sorted({*named, *(more or [f"tests/{room}"])})


def survives(one: Mutation, place: Path, tests: Sequence[str], workers: int) -> bool:
    """Return whether the tests do not notice a change, which is made in the copy of the repository and taken back."""
    path = place / one.path.relative_to(REPOSITORY)
    source = path.read_bytes()
    path.write_bytes(one.made_in(source))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", str(workers), "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, timeout=_PATIENCE, encoding="utf-8", check=False
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_bytes(source)
    assert done.returncode in {0, 1, 2, 3}, done.stdout + done.stderr
    return done.returncode == 0


def main() -> None:
    """Draw changes, try them, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--room", required=True, help="a folder of ortdeploy")
    parser.add_argument("--modules", nargs="*", help="modules of the room, by name; all if none is named")
    parser.add_argument("--tests", nargs="*", default=[], help="tests that run instead of those of the room")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-n", "--workers", type=int, default=2)
    asked = parser.parse_args()
    paths = sorted((REPOSITORY / "ortdeploy" / asked.room).rglob("*.py"))
    possible = [one for path in paths if path.stem in (asked.modules or [path.stem]) for one in mutations(path)]
    drawn = random.Random(asked.seed).sample(possible, min(asked.count, len(possible)))  # noqa: S311  a draw
    survived = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(shutil.copytree(REPOSITORY, Path(name) / "copy", ignore=_NOT_COPIED))
        for one in drawn:
            is_left = survives(one, place, tests_for(one.path, asked.room, asked.tests), asked.workers)
            survived += is_left
            sys.stdout.write(f"{'SURVIVED' if is_left else 'noticed '} {one}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{survived} of {len(drawn)} survived, of {len(possible)} that can be drawn\n")


if __name__ == "__main__":
    main()
