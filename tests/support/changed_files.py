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
import pyarrow as pa
from onnx import TensorProto, helper
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from ortdeploy.cli.applying import runner
from ortdeploy.cli.main import main
from ortdeploy.events import log
from ortdeploy.files import content_store
from ortdeploy.jobs.job import JobRun
from ortdeploy.jobs.pinned_files import PinnedFiles
from ortdeploy.ledger.ledger import Ledger
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
    input: {path: DATA, key: [row], columns: {x: COLUMN}}
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
PAINTER = """\
version: 1
name: changing
pipelines:
  paint: {preset: text-to-image, from: painter, providers: [CPU], steps: 2, height: 32, width: 32, latents: noise.npy}
jobs:
  paint:
    pipeline: paint
    input: {path: prompts.csv, key: [row]}
    batch: {size: 2}
    output: {path: out/paint, format: npz, rows_per_part: 4}
"""
WAYS = ("renamed over", "overwritten", "cut", "taken away")
FILES = ("models/m.onnx", "models/w.bin", "fr.onnx_adapter", "labels.txt", "models/words.onnx", "tokenizer.json")
OPTION_FILE = "options.json"
"""A file that an option names: it is opened where it lies, and never kept."""
DATA = {
    "npy": ("data.npy", "array"),
    "fortran.npy": ("data.npy", "array"),
    "arrow": ("data.arrow", "v"),
    "npz": ("data.npz", "v"),
    "parquet": ("data.parquet", "v"),
    "jsonl": ("data.jsonl", "v"),
}
"""Kinds of input files: their name, and the column."""
PAINTED = (
    "painter/tokenizer/vocab.json", "painter/tokenizer/merges.txt", "painter/scheduler/scheduler_config.json",
    "painter/unet/model.onnx", "painter/text_encoder/model.onnx", "noise.npy", "prompts.csv", "m.yaml",
)  # fmt: skip
DEPLOYMENTS: Mapping[str, tuple[str, ...]] = {
    **{kind: (*FILES, OPTION_FILE, "text.csv", "m.yaml", name) for kind, (name, _) in DATA.items()},
    "painter": PAINTED,
}
"""What is deployed, and the files that are changed."""
READ_AS_THEY_ARE = {"text.csv", "prompts.csv", *(name for name, _ in DATA.values())}
"""Inputs: of a changed one, rows of before and after may be there where the run failed."""


def prepare(folder: Path, data: str) -> None:
    """Write the deployment, and beside each file another one of its kind, under `other/`."""
    if data == "painter":
        _painter(folder)
        return
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
        (place / "text.csv").write_text(
            "text\n" + "".join(f"one two {'two ' * ((row + int(factor)) % 3)}\n" for row in range(ROWS))
        )
        name, column = DATA[data]
        text = MANIFEST.replace("DATA", name).replace("COLUMN", column)
        (place / "m.yaml").write_text(text if place == folder else text.replace("[total, name]", "[total]"))


def _painter(folder: Path) -> None:
    """Write a deployment whose pipeline is a preset, and another one under `other/`."""
    for place, factor in ((folder, 1), (folder / "other", 3)):
        shutil.copytree(Path(__file__).parents[2] / "deployments/models/painter", place / "painter")
        prompt = {1: "a red house", 3: "the sea"}[factor]
        (place / "prompts.csv").write_text("prompt\n" + "".join(f"{prompt} {row}\n" for row in range(8)))
        np.save(place / "noise.npy", np.random.RandomState(factor).randn(4, 4, 4).astype(np.float32))
        (place / "m.yaml").write_text(PAINTER.replace("steps: 2", f"steps: {factor + 1}"))
    other = folder / "other/painter"
    vocabulary = json.loads((other / "tokenizer/vocab.json").read_text())
    words, numbers = list(vocabulary), list(vocabulary.values())
    (other / "tokenizer/vocab.json").write_text(json.dumps(dict(zip(words, reversed(numbers), strict=True))))
    (other / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    scheduler = json.loads((other / "scheduler/scheduler_config.json").read_text())
    (other / "scheduler/scheduler_config.json").write_text(json.dumps({**scheduler, "beta_end": 0.5}))
    for part in ("unet", "text_encoder"):
        _shift(other / part / "model.onnx")


def _shift(path: Path) -> None:
    """Make another model of one: its weights are others."""
    model = onnx.load(str(path))
    for one in model.graph.initializer:
        array = onnx.numpy_helper.to_array(one)
        if array.dtype == np.float32 and array.ndim > 1:
            one.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.5), one.name))
    onnx.save(model, str(path))


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
    path = folder / DATA[kind][0]
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDTH)})
    match kind:
        case "arrow":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        case "parquet":
            parquet.write_table(table, path, row_group_size=16)
        case "jsonl":
            path.write_text("".join(json.dumps({"v": row.tolist()}) + "\n" for row in rows))
        case "npz":
            np.savez(path, v=rows)
        case _:
            np.save(path, np.asfortranarray(rows) if kind == "fortran.npy" else rows)


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
    "planned": (runner, "run_plan", True, 1),
    "held": (PinnedFiles, "hold", False, 1),
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
        log.send_to(None)
    return code, out.getvalue() + err.getvalue()


def rows_of(folder: Path) -> dict[str, dict[int, Any]]:
    """Return the rows that were written, by job and number."""
    found: dict[str, dict[int, Any]] = {}
    for part in sorted((folder / "out").glob("*/part-*")):
        lines = _painted(part) if part.suffix == ".npz" else map(json.loads, part.read_text().splitlines())
        found.setdefault(part.parent.name, {}).update({line["row"]: line for line in lines})
    return found


def _painted(part: Path) -> list[dict[str, Any]]:
    with np.load(part) as arrays:
        return [
            {"row": int(row), "image": image.tobytes()}
            for row, image in zip(arrays["row"], arrays["image"], strict=True)
        ]


def _rows_anew(folder: Path) -> dict[str, dict[int, Any]]:
    """Return the rows of a deployment as its files are now, as if it had never run."""
    for name in ("out", ".ortdeploy"):
        shutil.rmtree(folder / name)
    code, said = applied(folder)
    assert code == 0, said
    return rows_of(folder)


def judge(folder: Path, change: Change, made: bool, ended: tuple[int, str], wanted: Mapping[str, Any]) -> None:
    """Raise AssertionError where a run ended neither right nor with the file's name."""
    code, said = ended
    found = rows_of(folder)
    assert code in {0, 1}, said
    assert "Traceback" not in said, said
    assert ".ortdeploy/store" not in said, said
    if code == 0:
        overtaken = change.file in READ_AS_THEY_ARE and "plan.overtaken" in said  # then what is there now was read
        assert found == (_rows_anew(folder) if overtaken else wanted), said
    else:
        assert made, said
        assert Path(change.file).name in said, (change, said)
        for job, rows in found.items():
            if change.file in READ_AS_THEY_ARE:
                assert set(rows) <= set(wanted[job])
            else:
                assert all(rows[row] == wanted[job][row] for row in rows), (change, said)
        reports = [json.loads(path.read_text()) for path in (folder / "out").glob("*/_run.json")]
        assert all(report["status"] in {"done", "failed"} for report in reports)


def runs(folder: Path, count: int, seed: int) -> None:
    """Make runs, each with one change at random."""
    generator = random.Random(seed)  # noqa: S311  a test's
    clean: dict[str, Mapping[str, Any]] = {}
    for data in DEPLOYMENTS:
        prepare(folder / f"clean-{data}", data)
        code, said = applied(folder / f"clean-{data}")
        assert code == 0, said
        clean[data] = rows_of(folder / f"clean-{data}")
        shutil.rmtree(folder / f"clean-{data}/out")
        shutil.rmtree(folder / f"clean-{data}/.ortdeploy")
    happened = 0
    for number in range(count):
        data = generator.choice(list(DEPLOYMENTS))
        file = generator.choice(DEPLOYMENTS[data])
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
