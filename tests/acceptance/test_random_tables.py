"""Tables at random: with exit 0 every row is there once, with the values that an independent reader finds, or failed.

ORTDEPLOY_TABLES says how many the slow part runs, and ORTDEPLOY_FUZZ_SEED which.
"""

import decimal
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Cli
from onnx import TensorProto, helper
from support.models import save_model
from support.random_tables import Case, Kind, draw, numpy_value
from support.table_model import Row, rows_of

COUNT = int(os.environ.get("ORTDEPLOY_TABLES", "60"))
FIRST = int(os.environ.get("ORTDEPLOY_FUZZ_SEED", "1")) * 1_000_000
_EMPTY = object()


def save_identity(path: Path, kind: Kind) -> None:
    shape: list[int | str | None] = ["batch", *[f"n{axis}" for axis in range(kind.depth)]]
    ends = (kind.element, shape)
    save_model(path, [helper.make_node("Identity", ["x"], ["y"])], {"x": ends}, {"y": ends})


def save_manifest(folder: Path, case: Case, rows: int, batch: int) -> Path:
    job = {
        "model": "m",
        "input": {"path": case.files, **({"format": "arrow"} if case.form == "arrows" else {}), **case.input},
        "batch": {"size": batch},
        "errors": {"max_failed": rows},
        "output": {"path": "out", "rows_per_part": 11},
    }
    document = {"version": 1, "models": {"m": {"path": "m.onnx"}}, "jobs": {"run": job}}
    (folder / "m.yaml").write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return folder / "m.yaml"


def expected(case: Case, rows: list[Row]) -> Iterator[dict[str, Any] | None]:
    """Yield what is written of each row, or None if it fails."""
    for row in rows:
        try:
            yield None if row is None else _written(case, row)
        except (ValueError, TypeError, KeyError, ArithmeticError):
            yield None


def _written(case: Case, row: dict[str, Any]) -> dict[str, Any]:
    x, *keys = case.names
    value = _fed(case, _without_empty(case, row[x]))
    if case.kind.depth:
        _require_tensor(value, case.kind.depth)
    carried = {name: _without_empty(case, row[name]) for name in keys}
    return {**{name: ("" if one is _EMPTY else one) for name, one in carried.items()}, "y": value}


def _without_empty(case: Case, value: Any) -> Any:
    """Return a value; of a text that counts as empty, what the format has in its place."""
    if isinstance(value, list):
        return [_without_empty(case, one) for one in value]
    if isinstance(value, str) and value.strip() in case.input.get("empty", ()):
        return _EMPTY if case.form == "csv" else None
    return _EMPTY if case.form == "csv" and value == "" else value


def _fed(case: Case, value: Any, depth: int | None = None) -> Any:
    depth = case.kind.depth if depth is None else depth
    fillers = case.input.get("missing", {})
    is_gap = value is None or value is _EMPTY or (value == "" and case.form == "jsonl" and bool(fillers))
    if depth and not isinstance(value, list):
        raise ValueError("no list")
    if depth:
        return [_fed(case, one, depth - 1) for one in value]
    if is_gap and fillers.get(case.names[0]) is not None:
        return numpy_value(fillers[case.names[0]], case.kind)
    if is_gap and not (case.form == "csv" and case.kind.element == TensorProto.STRING and not fillers):
        raise ValueError("a gap")
    return "" if is_gap else _read(case, value)


def _read(case: Case, value: Any) -> Any:
    """Return a value of a file as one of the model's type. Raises ValueError, TypeError, ArithmeticError."""
    element = case.kind.element
    if element == TensorProto.STRING:
        if not isinstance(value, str):
            raise TypeError(value)
        return value
    if case.form == "jsonl" and isinstance(value, str):
        raise TypeError(value)
    if element == TensorProto.BOOL:
        return {"True": True, "False": False}[value] if isinstance(value, str) else value
    if isinstance(value, list):
        raise TypeError(value)
    if element == TensorProto.INT64:
        whole = decimal.Decimal(value)
        if whole != int(whole) or not -(2**63) <= whole < 2**63:
            raise ValueError(value)
        return int(whole)
    found = numpy_value(value, case.kind)
    return found if math.isfinite(found) else None


def _require_tensor(value: Any, depth: int) -> tuple[int, ...]:
    """Return the shape of nested lists. Raises ValueError if they differ, which no tensor can hold."""
    if not depth:
        return ()
    inner = {_require_tensor(one, depth - 1) for one in value}
    if len(inner) > 1:
        raise ValueError("lists of different lengths")
    return (len(value), *next(iter(inner), (0,) * (depth - 1)))


def run(cli: Cli, folder: Path, number: int) -> tuple[str, Case]:
    """Return what is wrong with a case, or nothing."""
    case = draw(number, folder)
    rows = [row for name in case.files for row in rows_of(folder / name, **case.dialect)]
    wanted = list(expected(case, rows))
    save_identity(folder / "m.onnx", case.kind)
    manifest = save_manifest(folder, case, len(rows), (1, 3, 32)[number % 3])
    if case.ways == "shards":
        codes = [cli("plan", manifest, "--out", folder / "plan.json")]
        codes += [cli("apply", folder / "plan.json", "--shard", f"{shard}/2") for shard in (1, 0)]
        codes += [cli("finish", folder / "plan.json")]
    else:
        codes = [cli("apply", manifest)]
    bad = next((one for one in codes if one.code), None)
    if bad is not None:
        return f"exit {bad.code}: {bad.words[-600:]}", case
    return _compared(folder, wanted), case


def _compared(folder: Path, wanted: list[dict[str, Any] | None]) -> str:
    parts = sorted((folder / "out").glob("part-*.jsonl"))
    found = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    failed = {json.loads(line)["row"] for line in (folder / "out/_failed.jsonl").read_text().splitlines()}
    counts = json.loads((folder / "out/_run.json").read_text())["rows"]
    gone = {row for row, one in enumerate(wanted) if one is None}
    if failed != gone:
        return f"failed {sorted(failed - gone)} too many, {sorted(gone - failed)} too few"
    if (counts["input"], counts["committed"], counts["failed"]) != (len(wanted), len(wanted) - len(gone), len(gone)):
        return f"counts {counts}"
    good = [(row, one) for row, one in enumerate(wanted) if one is not None]
    wrong = [f"row {row}: {got} for {one}" for (row, one), got in zip(good, found, strict=False) if _differ(one, got)]
    return (f"{len(found)} rows for {len(good)}" if len(found) != len(good) else "") or "; ".join(wrong[:3])


def _differ(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    return json.dumps(wanted, sort_keys=True) != json.dumps(found, sort_keys=True)


def run_many(cli: Cli, folder: Path, numbers: range) -> None:
    findings, seen = [], Counter[str]()
    for number in numbers:
        one = folder / str(number)
        one.mkdir()
        wrong, case = run(cli, one, number)
        seen.update([case.form, case.ways, *case.told])
        if wrong:
            findings.append(f"table {number}, {case.form}, {case.kind.type}, {case.input}, {case.told}: {wrong}")
        else:
            shutil.rmtree(one)
    assert not findings, f"{len(findings)} of {len(numbers)}, among {dict(seen)}:\n" + "\n".join(findings[:30])


def test_a_few_random_tables(cli: Cli, tmp_path: Path) -> None:
    run_many(cli, tmp_path, range(3))


@pytest.mark.slow
def test_random_tables(cli: Cli, tmp_path: Path) -> None:
    run_many(cli, tmp_path, range(FIRST, FIRST + COUNT))
