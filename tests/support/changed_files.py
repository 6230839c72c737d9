"""Deployments whose files are changed while they are applied, at every stage, in every way: `python -m support.changed_files`.

Each run ends right, or with exit code 1 and the name of the file; rows that are there are those of the files that the
plan was made from.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import structlog
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

from ortdeploy.cli.commands import apply
from ortdeploy.cli.main import main
from ortdeploy.files import content_store
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.running.held_files import HeldFiles
from ortdeploy.running.job import JobRun
from ortdeploy.runtime import session as runtime
from support.models import make_adapter, save_model

ROWS, WIDTH = 64, 1024
MANIFEST = """\
version: 1
name: changing
models:
  m: {path: models/m.onnx, run: {config: {qnn.lora_config: options.json}}}
  words: {path: models/words.onnx}
adapters:
  french: {path: fr.onnx_adapter, model: m}
pipelines:
  p:
    steps:
      - {do: tokenize, in: {text: $text, tokenizer: tokenizer.json}, out: [ids, mask, types]}
      - {run: words, in: {ids: $ids}, out: {y: y}}
    outputs: {y: $y}
jobs:
  numbers:
    model: m
    adapter: french
    input: {path: data.INPUT, key: [row], columns: {x: COLUMN}}
    postprocess:
      - {argmax: y, as: digit}
      - {labels: digit, from: labels.txt, as: name}
    batch: {size: 4}
    output: {path: out/numbers, format: jsonl, rows_per_part: 16, columns: [total, name]}
  texts:
    pipeline: p
    input: {path: text.csv, key: [row]}
    batch: {size: 4}
    output: {path: out/texts, format: jsonl, rows_per_part: 16}
"""
WAYS = ("renamed over", "overwritten", "cut", "taken away")
FILES = ("models/m.onnx", "models/w.bin", "fr.onnx_adapter", "labels.txt", "models/words.onnx", "tokenizer.json")
OPTION_FILE = "options.json"
"""A file that an option names: it is opened where it lies, and never kept."""
INPUTS = ("npy", "fortran.npy", "arrow")


def prepare(folder: Path, data: str) -> None:
    """Write the deployment, and beside each file another one of its kind, under `other/`."""
    for place, factor in ((folder, 1.0), (folder / "other", 3.0)):
        (place / "models").mkdir(parents=True)
        _model(place / "models/m.onnx", factor)
        _words(place / "models/words.onnx", factor)
        matrix = np.full((WIDTH, 2), factor, np.float32)
        make_adapter(place / "fr.onnx_adapter", lora_A=matrix, lora_B=matrix.T.copy() / WIDTH)
        (place / OPTION_FILE).write_text(f'{{"factor": {factor}}}')
        (place / "labels.txt").write_text("".join(f"{factor} {index}\n" for index in range(WIDTH)))
        _tokenizer(place / "tokenizer.json", first=int(factor))
        _data(place, data, factor)
    (folder / "text.csv").write_text("text\n" + "".join(f"one two {'two ' * (row % 3)}\n" for row in range(ROWS)))
    column = "v" if data == "arrow" else "array"
    name = {"npy": "npy", "fortran.npy": "npy", "arrow": "arrow"}[data]
    (folder / "m.yaml").write_text(MANIFEST.replace("INPUT", name).replace("COLUMN", column))


def _model(path: Path, factor: float) -> None:
    save_model(
        path,
        [
            helper.make_node("Mul", ["x", "w"], ["h"]),
            helper.make_node("MatMul", ["h", "lora_A"], ["down"]),
            helper.make_node("MatMul", ["down", "lora_B"], ["up"]),
            helper.make_node("Add", ["h", "up"], ["y"]),
            helper.make_node("ReduceSum", ["y", "axis"], ["sum"], keepdims=0),
            helper.make_node("Mul", ["sum", "gain"], ["total"]),
        ],
        {
            "x": (TensorProto.FLOAT, ["batch", WIDTH]),
            "lora_A": (TensorProto.FLOAT, [WIDTH, "rank"]),
            "lora_B": (TensorProto.FLOAT, ["rank", WIDTH]),
        },
        {"y": (TensorProto.FLOAT, ["batch", WIDTH]), "total": (TensorProto.FLOAT, ["batch"])},
        {
            "w": np.full(WIDTH, factor, np.float32),
            "axis": np.array([1]),
            "gain": np.array(factor, np.float32),
            "lora_A": np.zeros((WIDTH, 0), np.float32),
            "lora_B": np.zeros((0, WIDTH), np.float32),
        },
    )
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=1024)


def _words(path: Path, factor: float) -> None:
    save_model(
        path,
        [
            helper.make_node("Cast", ["ids"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["numbers", "factor"], ["scaled"]),
            helper.make_node("ReduceSum", ["scaled", "axis"], ["y"], keepdims=0),
        ],
        {"ids": (TensorProto.INT64, ["batch", "tokens"])},
        {"y": (TensorProto.FLOAT, ["batch"])},
        {"factor": np.array(factor, np.float32), "axis": np.array([1])},
    )


def _tokenizer(path: Path, first: int) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": first, "two": first + 1}, unk_token="[UNK]"))  # noqa: S106  a word
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


def _data(folder: Path, kind: str, factor: float) -> None:
    rows = (np.arange(ROWS * WIDTH, dtype=np.float32) * factor % 1000).reshape(ROWS, WIDTH)
    if kind == "arrow":
        import pyarrow as pa  # noqa: PLC0415  only here

        table = pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDTH)})
        with pa.ipc.new_file(str(folder / "data.arrow"), table.schema) as writer:
            writer.write_table(table)
    else:
        np.save(folder / "data.npy", np.asfortranarray(rows) if kind == "fortran.npy" else rows)


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to which file, and when."""

    file: str
    way: str
    stage: str

    def make(self, folder: Path) -> None:
        """Change the file."""
        path, other = folder / self.file, folder / "other" / self.file
        match self.way:
            case "renamed over":
                other.rename(path)
            case "overwritten":
                with path.open("r+b") as file:
                    file.write(other.read_bytes())
                    file.truncate()
            case "cut":
                os.truncate(path, path.stat().st_size // 3)
            case _:
                path.unlink()


_HOOKS: dict[str, tuple[Any, str, bool, int]] = {
    "planned": (apply, "run_plan", True, 1),
    "held": (HeldFiles, "hold", False, 1),
    "opening": (runtime, "_open", True, 1),
    "opened": (runtime, "_open", False, 1),
    "composed": (JobRun, "run", True, 1),
    "running": (runtime.OrtSession, "run", False, 1),
    "committed once": (Ledger, "commit_part", False, 1),
    "committed twice": (Ledger, "commit_part", False, 2),
}
"""What is called at a stage: its owner and name, whether the change comes before it, and at which call."""


@contextlib.contextmanager
def changing(folder: Path, change: Change, *, kept: bool = True) -> Iterator[list[Change]]:
    """Make a change once, when an apply comes to its stage; give what was made. Without `kept`, no copy has room."""
    made: list[Change] = []
    calls: list[str] = []
    owner, name, comes_before, number = _HOOKS[change.stage]
    whole = getattr(owner, name)

    def hooked(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        due = len(calls) == number
        if due and comes_before:
            change.make(folder)
            made.append(change)
        result = whole(*arguments, **named)
        if due and not comes_before:
            change.make(folder)
            made.append(change)
        return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(owner, name, hooked))
        if not kept:
            stack.enter_context(mock.patch.object(content_store, "MOST_OF_THE_DISK", 0))
            stack.enter_context(mock.patch.object(content_store.ContentStore, "has_room", return_value=True))
            stack.enter_context(mock.patch.object(content_store, "_clone", return_value=False))
        yield made


def applied(folder: Path, *more: str) -> tuple[int, str]:
    """Apply the deployment in this process; return its exit code and all that it said."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["apply", str(folder / "m.yaml"), *more])
    finally:
        structlog.reset_defaults()
    return code, out.getvalue() + err.getvalue()


def rows_of(folder: Path) -> dict[str, dict[int, Any]]:
    """Return the rows that were written, by job and number."""
    found: dict[str, dict[int, Any]] = {}
    for part in sorted((folder / "out").glob("*/part-*")):
        lines = [json.loads(line) for line in part.read_text().splitlines()]
        found.setdefault(part.parent.name, {}).update({line["row"]: line for line in lines})
    return found


def judge(folder: Path, change: Change, made: bool, ended: tuple[int, str], wanted: Mapping[str, Any]) -> None:
    """Raise AssertionError where a run ended neither right nor with the file's name."""
    code, said = ended
    found = rows_of(folder)
    assert code in {0, 1}, said
    assert "Traceback" not in said, said
    assert ".ortdeploy/store" not in said, said
    if code == 0:
        assert found == wanted, said
    else:
        assert made, said
        assert Path(change.file).name in said, (change, said)
        for job, rows in found.items():
            if change.file.startswith("data."):
                assert set(rows) <= set(wanted[job])
            else:
                assert all(rows[row] == wanted[job][row] for row in rows), (change, said)
        reports = [json.loads(path.read_text()) for path in (folder / "out").glob("*/_run.json")]
        assert all(report["status"] in {"done", "failed"} for report in reports)


def runs(folder: Path, count: int, seed: int) -> None:
    """Make runs, each with one change at random."""
    generator = random.Random(seed)  # noqa: S311  a test's
    clean: dict[str, Mapping[str, Any]] = {}
    for data in INPUTS:
        prepare(folder / f"clean-{data}", data)
        code, said = applied(folder / f"clean-{data}")
        assert code == 0, said
        clean[data] = rows_of(folder / f"clean-{data}")
        shutil.rmtree(folder / f"clean-{data}/out")
        shutil.rmtree(folder / f"clean-{data}/.ortdeploy")
    happened = 0
    for number in range(count):
        data = generator.choice(INPUTS)
        file = generator.choice((*FILES, OPTION_FILE, "data.arrow" if data == "arrow" else "data.npy"))
        way, kept = generator.choice(WAYS), generator.random() < 0.7
        if way == "cut" and file in {"models/w.bin", "fr.onnx_adapter"}:
            kept = True  # a file that is mapped where it lies runs in a process of its own
        change = Change(file, way, generator.choice(list(_HOOKS)))
        run = folder / f"run{number}"
        shutil.copytree(folder / f"clean-{data}", run)
        with changing(run, change, kept=kept) as made:
            ended = applied(run)
        try:
            judge(run, change, bool(made), ended, clean[data])
        except AssertionError as error:
            raise AssertionError(f"run {number}: {data}, {change}, kept: {kept}") from error
        happened += bool(made)
        shutil.rmtree(run)
    sys.stdout.write(f"{happened} of {count} runs had a file changed\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    chosen = parser.parse_args()
    runs(chosen.folder, chosen.count, chosen.seed)
