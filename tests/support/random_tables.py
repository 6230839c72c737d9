"""Tables at random, as they come from people and machines: types, nulls, lists, quoting, damage, several files."""

import io
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from onnx import TensorProto
from pyarrow import parquet

from support.table_model import PACKERS

TEXT = ("csv", "jsonl")
ENDS = ("\n", "\r\n", "\r")


@dataclass(frozen=True)
class Kind:
    """What a column holds: the element type of the model, that of tables, and how deep it lies in lists."""

    element: int
    arrow: pa.DataType
    values: Sequence[Any]
    wrong: Sequence[Any] = ()
    filler: Any = None
    depth: int = 0
    sizes: Sequence[int] = ()

    @property
    def type(self) -> pa.DataType:
        """The type of the column in tables; a list has one size if `sizes` has only one."""
        kind = self.arrow
        for _ in range(self.depth):
            kind = pa.list_(kind, self.sizes[0]) if len(self.sizes) == 1 else pa.list_(kind)
        return kind


FLOATS = (0.0, -1.5, 2.25, 1e10, 123456.0, -0.125)
WHOLE = (0, -1, 7, 2**53 + 1, -(2**63), 2**63 - 1)
WORDS = ("", "a", "né", 'say "hi"', "a,b", "two\nlines", "semi;colon", "NA", " - ", "null", "\t", "# no", "'")
KINDS: Mapping[str, Kind] = {
    "float": Kind(TensorProto.FLOAT, pa.float32(), FLOATS, ("abc", [1.0]), 7.5),
    "double": Kind(TensorProto.DOUBLE, pa.float64(), (*FLOATS, 0.1, 1e300), ("1,5",), 0.1),
    "whole": Kind(TensorProto.INT64, pa.int64(), WHOLE, ("1.5", "x", 2**63), 2**53 + 3),
    "bool": Kind(TensorProto.BOOL, pa.bool_(), (True, False), ("yes",), True),
    "text": Kind(TensorProto.STRING, pa.string(), WORDS, (), "filled"),
    "large text": Kind(TensorProto.STRING, pa.large_string(), WORDS, (), "filled"),
    "list": Kind(TensorProto.FLOAT, pa.float32(), FLOATS, ("abc",), 7.5, 1, (0, 1, 3)),
    "list of one size": Kind(TensorProto.INT64, pa.int64(), WHOLE, (), 5, 1, (2,)),
    "lists": Kind(TensorProto.FLOAT, pa.float32(), FLOATS, (), 7.5, 2, (1, 2)),
    "nulls": Kind(TensorProto.FLOAT, pa.null(), (None,), (), 7.5),
}


@dataclass
class Case:
    """A table in files, what a manifest says of it, and what was done to it."""

    form: str
    kind: Kind
    names: tuple[str, str, str]
    input: dict[str, Any]
    files: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    ways: str = "apply"
    in_dictionary: bool = False
    repeated: bool = False

    @property
    def dialect(self) -> dict[str, Any]:
        """What decides where records of CSV begin."""
        return {key: self.input[key] for key in ("delimiter", "lines_per_record") if key in self.input}


def draw(
    number: int, folder: Path, forms: Sequence[str] = ("csv", "tsv", "jsonl", "parquet", "arrow", "arrows")
) -> Case:
    """Write the files of a case, which its number decides, into a folder."""
    chance = random.Random(number)  # noqa: S311  no secret
    form = chance.choice(forms)
    is_csv = form in {"csv", "tsv"}
    kind = KINDS[chance.choice([name for name, one in KINDS.items() if not (is_csv and one.depth)])]
    names = chance.choice([("x", "id", "name"), ("a b", " id", "näme"), ("f;1", "f,2", 'f"3')])
    case = Case(form="csv" if is_csv else form, kind=kind, names=names, input=_input(chance, kind, names))
    if is_csv:
        case.input |= {"delimiter": "\t"} if form == "tsv" else chance.choice([{}, {}, {"delimiter": ";"}])
        case.input |= chance.choice([{}, {}, {"lines_per_record": chance.choice([1, 2, 5])}])
    suffix = chance.choice(["", "", *PACKERS]) if case.form in TEXT else ""
    case.in_dictionary = chance.random() < 0.3 and pa.types.is_string(kind.type)
    case.repeated = chance.random() < 0.2  # a column that is there twice, and that nobody uses
    for count in range(chance.choice([1, 1, 2, 3])):
        rows = [
            _row(chance, case, n)
            for n in range(chance.choice([1, 2, 5, 17, 40]) if count else chance.choice([2, 9, 33]))
        ]
        name = f"{count}.{case.form}{suffix}"
        (folder / name).write_bytes(_written(chance, case, rows, suffix, is_first=not count))
        case.files.append(name)
    case.ways = chance.choice(["apply", "apply", "shards"])
    return case


def _input(chance: random.Random, kind: Kind, names: tuple[str, str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {"columns": {"x": names[0]}, "key": list(names[1:])}
    said |= chance.choice([{}, {"empty": ["NA", "-", "null"]}])
    return said | chance.choice([{}, {"missing": {names[0]: kind.filler}}, {"missing": {names[0]: None}}])


def _row(chance: random.Random, case: Case, number: int) -> dict[str, Any]:
    nulls, wrong = (0.2, 0.05 if case.form in TEXT and case.kind.wrong else 0)
    x: Any = _value(chance, case.kind, nulls)
    if chance.random() < wrong and number:
        x = chance.choice(case.kind.wrong)
    return dict(zip(case.names, (x, number, chance.choice(WORDS)), strict=True))


def _value(chance: random.Random, kind: Kind, nulls: float, depth: int | None = None) -> Any:
    depth = kind.depth if depth is None else depth
    if chance.random() < nulls:
        return None
    if not depth:
        return chance.choice(kind.values)
    return [_value(chance, kind, nulls / 4, depth - 1) for _ in range(chance.choice(kind.sizes))]


def _written(
    chance: random.Random, case: Case, rows: Sequence[Mapping[str, Any]], suffix: str, *, is_first: bool
) -> bytes:
    if case.form == "csv":
        return PACKERS[suffix][0](_damaged(chance, case, _csv(chance, case, rows), is_first=is_first))
    if case.form == "jsonl":
        return PACKERS[suffix][0](_damaged(chance, case, _jsonl(chance, rows), is_first=is_first))
    return _table(chance, case, rows)


def _csv(chance: random.Random, case: Case, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    delimiter = case.input.get("delimiter", ",")
    always = chance.random() < 0.3

    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        needs = always or any(sign in text for sign in (delimiter, '"', "\n", "\r"))
        return '"' + text.replace('"', '""') + '"' if needs else text

    return [delimiter.join(map(cell, cells)) for cells in (case.names, *(row.values() for row in rows))]


def _jsonl(chance: random.Random, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    as_ascii = chance.random() < 0.5
    return [json.dumps(row, ensure_ascii=as_ascii) for row in rows]


def _damaged(chance: random.Random, case: Case, lines: list[str], *, is_first: bool) -> bytes:
    """Return lines as a file, with blank ones, other ends, and some that are broken; never the first two of the first."""
    kept = 2 if is_first else 1 if case.form == "csv" else 0
    harm = chance.choice([0.0, 0.0, 0.05, 0.3])
    for at in range(kept, len(lines)):
        if chance.random() < harm:
            lines[at] = _broken(chance, case, lines[at])
    for _ in range(chance.choice([0, 0, 1, 3])):
        lines.insert(chance.randint(0 if case.form == "csv" else kept, len(lines)), chance.choice(["", "", "  "]))
    ends = [chance.choice(ENDS if case.form == "csv" else ENDS[:2])] if chance.random() < 0.7 else list(ENDS[:2])
    text = "".join(line + chance.choice(ends) for line in lines)
    text = text.rstrip("\r\n") if chance.random() < 0.3 else text + chance.choice(["", "", "\n", "\n\n"])
    mark = chance.choice([b"", b"", b"\xef\xbb\xbf"])
    content = mark + text.encode(errors="surrogateescape")
    if chance.random() < 0.1 and len(lines) > kept + 1:
        case.told.append("cut off")
        content = content[: -chance.randint(1, 5)]
    return content


def _broken(chance: random.Random, case: Case, line: str) -> str:
    how = chance.choice(["quote", "quote", "quoted", "more", "less", "nul", "garbled", "twice", "quote at end"])
    case.told.append(how)
    at = chance.randint(0, len(line))
    match how:
        case "quote":
            return f'{line[:at]}"{line[at:]}'
        case "quoted":
            return f'"{line}'
        case "quote at end":
            return f'{line}"'
        case "more":
            return f"{line}{case.input.get('delimiter', ',')}more"
        case "less":
            return line[:at]
        case "nul":
            return f"{line[:at]}\0{line[at:]}"
        case "garbled":
            return f"{line[:at]}\udcff{line[at:]}"
    return line * 2


def _table(chance: random.Random, case: Case, rows: Sequence[Mapping[str, Any]]) -> bytes:
    x, number, name = case.names
    columns = {
        x: pa.array([row[x] for row in rows], case.kind.type),
        number: pa.array([row[number] for row in rows], pa.int64()),
        name: pa.array([row[name] for row in rows], pa.string()),
    }
    if case.in_dictionary:
        columns[x] = columns[x].dictionary_encode()
    table = pa.table(columns)
    if case.repeated:
        table = table.append_column("twice", columns[number]).append_column("twice", columns[number])
    at_once = chance.choice([1, 3, 1000])
    file = io.BytesIO()
    if case.form == "parquet":
        parquet.write_table(
            table, file, row_group_size=at_once, compression=chance.choice(["none", "snappy", "gzip", "zstd"])
        )
        return file.getvalue()
    options = pa.ipc.IpcWriteOptions(compression=chance.choice([None, None, "lz4", "zstd"]), unify_dictionaries=True)
    new = pa.ipc.new_file if case.form == "arrow" else pa.ipc.new_stream
    with new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=at_once)
    return file.getvalue()


def numpy_value(value: Any, kind: Kind) -> Any:
    """Return a value as the model gives it back, in JSON. Raises ValueError where it is none of the kind."""
    if isinstance(value, list):
        if not kind.depth:
            raise ValueError("a list")
        return [numpy_value(item, kind) for item in value]
    if kind.element == TensorProto.FLOAT:
        return float(np.float32(float(value)))
    if kind.element == TensorProto.DOUBLE:
        return float(value)
    return value
