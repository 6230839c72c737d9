"""What is damaged, and how: folders that work, of which each case changes one file, and the command that reads it."""

import gzip
import json
import random
import shutil
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import soundfile
import yaml
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from pyarrow import feather, parquet

from support.hostile import mutate
from support.models import save_model, scale_model

FLOAT = TensorProto.FLOAT
ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
LINES = "".join(json.dumps({"x": row.tolist(), "key": str(number)}) + "\n" for number, row in enumerate(ROWS)).encode()
CELLS = ("x,key\n" + "".join(f"{row[0]},{number}\n" for number, row in enumerate(ROWS))).encode()
TABLE = pa.table(
    {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 4),
        "key": pa.array([f"name {number}" for number in range(40)]).dictionary_encode(),
        "list": pa.array([[1.5] * (number % 3) for number in range(40)]),
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and what of its folder was changed."""

    arguments: Sequence[str]
    changed: str


def _wav(path: Path, width: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(bytes(range(96)) * width)


def _stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as file:
        file.write_table(TABLE, 16)


def _recording(path: Path) -> None:
    soundfile.write(path, ROWS.reshape(-1, 2) / 4, 8000)


def _array_by_another_name(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, ROWS)


def _picture(path: Path, mode: str = "RGB") -> None:
    picture = Image.fromarray((ROWS.repeat(3).reshape(40, 4, 3) * 50 + 128).astype(np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(path, exif=exif) if path.suffix in {".jpg", ".png", ".tiff", ".webp"} else picture.save(path)


INPUTS: Mapping[str, Callable[[Path], object]] = {
    "a.npy": lambda path: np.save(path, ROWS),
    "f.npy": lambda path: np.save(path, np.asfortranarray(ROWS)),
    "text.npy": lambda path: np.save(path, np.array(["one", "two"])),
    "a.npz": lambda path: np.savez(path, x=ROWS, key=np.arange(40)),
    "packed.npz": lambda path: np.savez_compressed(path, x=ROWS, f=np.asfortranarray(ROWS)),
    "a.parquet": lambda path: parquet.write_table(TABLE, path),
    "packed.parquet": lambda path: parquet.write_table(TABLE, path, compression="zstd", row_group_size=9),
    "a.arrow": lambda path: feather.write_feather(TABLE, path, compression="uncompressed"),
    "packed.arrow": lambda path: feather.write_feather(TABLE, path, compression="zstd"),
    "a.arrows": _stream,
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES, mtime=0)),
    "a.csv": lambda path: path.write_bytes(CELLS),
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(CELLS, mtime=0)),
    "a.txt": lambda path: path.write_bytes(CELLS),
    "a.pb": lambda path: path.write_bytes(numpy_helper.from_array(ROWS, "x").SerializeToString()),
    "text.pb": lambda path: path.write_bytes(numpy_helper.from_array(np.array(["a", "b"]), "x").SerializeToString()),
    "a.raw": lambda path: path.write_bytes(ROWS.tobytes()),
    "a.wav": lambda path: _wav(path, 2),
    "wide.wav": lambda path: _wav(path, 3),
    **{f"a.{suffix}": _recording for suffix in ("flac", "ogg", "aiff")},
    "page.jpg": lambda path: path.write_bytes(b"<!DOCTYPE html><html>" + LINES),
    "array.csv": _array_by_another_name,
    "table.npy": lambda path: parquet.write_table(TABLE, path),
    "lines.parquet": lambda path: path.write_bytes(LINES),
    "zipped.jsonl": lambda path: path.write_bytes(gzip.compress(LINES, mtime=0)),
    **{f"a.{suffix}": _picture for suffix in ("png", "jpg", "bmp", "tiff", "webp")},
    "p.gif": lambda path: _picture(path, "P"),
}

INPUT_MANIFEST = """\
version: 1
models: {{m: {{path: m.onnx}}}}
jobs:
  run:
    model: m
    input: {{path: {name}, columns: {{x: {column}}}{more}}}
    prepare: {{x: {prepare}}}
    output: {{path: out}}
    errors: {{max_failed: 100%}}
"""

_INTEGERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1, 255, 65535)


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """Return bytes with one to three changes of the kinds that discs, networks and hostile people make."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        place, size = chance.randrange(len(raw) + 1), chance.choice([1, 2, 4, 8, 16, 100])
        kind = chance.randrange(8)
        if kind == 0 and raw:
            place = chance.randrange(len(raw))
            raw = raw[:place] + bytes([raw[place] ^ 1 << chance.randrange(8)]) + raw[place + 1 :]
        elif kind == 1:
            raw = raw[:place]
        elif kind == 2:
            raw = raw[:place] + raw[place + size :]
        elif kind == 3:
            raw = raw[:place] + chance.randbytes(size) + raw[place:]
        elif kind == 4:
            raw = raw[:place] + chance.randbytes(size) + raw[place + size :]
        elif kind == 5:
            width = chance.choice("HIQ")
            number = chance.choice(_INTEGERS) % 2 ** (8 * struct.calcsize(width))
            raw = raw[:place] + struct.pack("<" + width, number) + raw[place + struct.calcsize(width) :]
        elif kind == 6:
            raw = raw[:place] + raw[place : place + size] * chance.choice([2, 10]) + raw[place + size :]
        else:
            other = chance.randrange(len(raw) + 1)
            raw = raw[:place] + raw[other : other + size] + raw[place + size :]
    return raw


class Inputs:
    """One damaged input file of any format, planned, and sometimes applied."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        scale_model(folder / "m.onnx", width="n")
        for name, write in INPUTS.items():
            write(folder / name)
        self._whole = {name: (folder / name).read_bytes() for name in INPUTS}

    def make(self, chance: random.Random) -> Case:
        name = chance.choice(sorted(INPUTS))
        (self._folder / name).write_bytes(damaged(self._whole[name], chance))
        shutil.rmtree(self._folder / "out", ignore_errors=True)
        shutil.rmtree(self._folder / ".ortdeploy", ignore_errors=True)
        column, prepare = {
            "txt": ("text", "[]"), "wav": ("samples", "[{flatten: true}]"), "flac": ("samples", "[{flatten: true}]"),
            "ogg": ("samples", "[{flatten: true}]"), "aiff": ("samples", "[{flatten: true}]"), "npy": ("array", "[]"),
            "pb": ("array", "[]"), "raw": ("array", "[]"), "csv": ("x", "[{expand: 0}]"),
        }.get(name.removesuffix(".gz").rpartition(".")[2], ("x", "[]"))  # fmt: skip
        if name.rpartition(".")[2] in {"png", "jpg", "bmp", "tiff", "webp", "gif"}:
            column, prepare = "pixels", "[{resize: [2, 2]}, {cast: float32}, {flatten: true}]"
        if name.endswith((".npz", ".parquet", ".arrow", ".arrows")):
            column = chance.choice(["x", "x", "x", "key", "f", "list"])
        more = ", dtype: float32, shape: [4]" if name.endswith(".raw") else ""
        more += ", key: [key, path]" if "key" in more or name.endswith((".parquet", ".arrow", ".arrows")) else ""
        text = INPUT_MANIFEST.format(name=name, column=column, prepare=prepare, more=more)
        (self._folder / "m.yaml").write_text(text)
        return Case([chance.choice(["plan", "plan", "apply"]), "m.yaml", "-q"], name)


def _models(folder: Path) -> list[str]:
    """Models of different makes: plain, with branches, functions, sequences, external data, quantised, in ORT format."""
    scale_model(folder / "scale.onnx")
    weights = {"w": np.ones((4, 8), np.float32), "b": np.zeros(8, np.float32)}
    conv = {"w": np.ones((2, 3, 3, 3), np.float32)}
    save_model(
        folder / "dense.onnx",
        [helper.make_node("Gemm", ["x", "w", "b"], ["h"], alpha=0.5), helper.make_node("Relu", ["h"], ["y"], name="r")],
        {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 8])}, weights,
    )  # fmt: skip
    save_model(
        folder / "conv.onnx",
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], auto_pad="NOTSET")],
        {"x": (FLOAT, ["batch", 3, 8, 8])}, {"y": (FLOAT, ["batch", 2, 8, 8])}, conv,
    )  # fmt: skip
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["x"], [kind])], kind, [], [helper.make_tensor_value_info(kind, FLOAT, None)]
        )
        for kind in ("Relu", "Neg")
    ]
    save_model(
        folder / "if.onnx",
        [helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])],
        {"x": (FLOAT, ["batch", 4]), "c": (TensorProto.BOOL, [1])}, {"y": (FLOAT, ["batch", 4])},
    )  # fmt: skip
    model = onnx.load(folder / "dense.onnx")
    onnx.save(model, folder / "external.onnx", save_as_external_data=True, location="external.bin", size_threshold=0)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "dense.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    onnxruntime.InferenceSession(folder / "dense.onnx", options, ["CPUExecutionProvider"])
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({"w": onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((4, 8), np.float32))})
    adapter.export_adapter(str(folder / "a.onnx_adapter"))
    return ["scale.onnx", "dense.onnx", "conv.onnx", "if.onnx", "external.onnx", "external.bin", "dense.ort"]


KEPT = """\
version: 1
models:
  m: {path: dense.onnx, cache: true, memory: lean}
jobs:
  run: {model: m, input: {path: data.npy}, batch: {size: auto}, output: {path: kept, format: jsonl}}
"""


class Files:
    """A damaged model, external data, adapter, golden file, device file, label file, saved plan or file of a state."""

    def __init__(self, folder: Path) -> None:
        from ortdeploy.cli.main import main  # noqa: PLC0415  the worker sets its streams first

        self._folder = folder
        self._models = _models(folder)
        (folder / "labels.txt").write_text("a\nb\nc\nd\n")
        golden = folder / "checks/test_data_set_0"
        golden.mkdir(parents=True)
        (golden / "input_0.pb").write_bytes(numpy_helper.from_array(ROWS[:2], "x").SerializeToString())
        (golden / "output_0.pb").write_bytes(numpy_helper.from_array(ROWS[:2] * 2, "y").SerializeToString())
        np.save(folder / "data.npy", ROWS)
        (folder / "run.yaml").write_text(self._manifest("scale.onnx"))
        main(["apply", str(folder / "run.yaml"), "-q"])
        main(["device", "-o", str(folder / "device.yaml")])
        (folder / "saved.yaml").write_text(self._manifest("scale.onnx").replace("path: out", "path: saved"))
        main(["plan", str(folder / "saved.yaml"), "--out", str(folder / "plan.json")])
        (folder / "kept.yaml").write_text(KEPT)
        for _ in range(2):  # the second time, there is an answer to remember
            main(["apply", str(folder / "kept.yaml"), "--state-dir", str(folder / "state"), "-q"])
        (folder / "state").rename(folder / "whole-state")
        self._kept = sorted(
            path.relative_to(folder / "whole-state").as_posix()
            for path in (folder / "whole-state").rglob("*")
            if path.is_file() and path.suffix != ".db" and path.stat().st_size
        )
        self._state = folder / ".ortdeploy/state.db"
        names = [*self._models, "a.onnx_adapter", "labels.txt", "checks/test_data_set_0/input_0.pb", "device.yaml"]
        names.append("plan.json")
        self._whole = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
        self._whole[".ortdeploy/state.db"] = self._state.read_bytes()

    @staticmethod
    def _manifest(model: str, more: str = "") -> str:
        labels = "[{argmax: y, as: n}, {labels: n, from: labels.txt, as: name}]"
        job = f"{{model: m, input: {{path: data.npy}}, postprocess: {labels}, output: {{path: out, format: jsonl}}}}"
        return f"version: 1\nmodels:\n  m: {{path: {model}, checks: [checks]}}\n{more}jobs: {{run: {job}}}\n"

    def make(self, chance: random.Random) -> Case:
        for name, raw in self._whole.items():
            if (self._folder / name).read_bytes() != raw:
                (self._folder / name).write_bytes(raw)
        if chance.random() < 0.25:
            return self._state_case(chance)
        name = chance.choice(sorted([*self._whole, *self._models, *self._whole]))
        if name == "plan.json":
            for left in ("saved", "saved-state"):
                shutil.rmtree(self._folder / left, ignore_errors=True)
            (self._folder / name).write_bytes(_changed_json(self._whole[name], chance))
            return Case(["apply", name, "--state-dir", str(self._folder / "saved-state")], name)
        (self._folder / name).write_bytes(damaged(self._whole[name], chance))
        model = {"external.bin": "external.onnx"}.get(name, name if name in self._models else "scale.onnx")
        more = "adapters: {a: {path: a.onnx_adapter, model: m}}\n" if name == "a.onnx_adapter" else ""
        (self._folder / "m.yaml").write_text(self._manifest("dense.onnx" if more else model, more))
        state = ["--state-dir", str(self._folder / "elsewhere")]
        if name.endswith("state.db"):
            return Case([chance.choice(["plan", "status", "apply"]), "run.yaml"], name)
        if name == "device.yaml":
            return Case(["plan", "m.yaml", "--device", name, *state], name)
        if name.startswith("checks"):
            return Case(["check", "m.yaml"], name)
        if name.endswith((".onnx", ".ort")) and chance.random() < 0.2:
            return Case(["init", name], name)
        return (
            Case([chance.choice(["plan", "plan", "plan", "lock"]), "m.yaml"], name)
            if more
            else Case(["plan", "m.yaml", *state], name)
        )

    def _state_case(self, chance: random.Random) -> Case:
        """Damage a file of a state folder: what was remembered, compiled or kept by content."""
        shutil.rmtree(self._folder / "state", ignore_errors=True)
        shutil.copytree(self._folder / "whole-state", self._folder / "state")
        name = chance.choice(self._kept)
        path = self._folder / "state" / name
        raw = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(_changed_json(raw, chance) if path.suffix == ".json" else damaged(raw, chance))
        more = chance.choice([[], [], ["--new-run"]])
        command = ["apply", *more] if more or chance.random() < 0.5 else [chance.choice(["plan", "status"])]
        return Case([*command, "kept.yaml", "--state-dir", str(self._folder / "state")], f"state/{name}")


def _changed_json(raw: bytes, chance: random.Random) -> bytes:
    """Return a JSON document with one to three changes of its values, or of its bytes."""
    if chance.random() < 0.3:
        return damaged(raw, chance)
    document = json.loads(raw)
    for _ in range(chance.choice([1, 1, 2, 3])):
        if not isinstance(document, dict | list) or not document:
            break
        document = mutate(document, chance.randrange)
    return json.dumps(document).encode()


class Manifests:
    """A manifest of which one to three values, keys or bytes are changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        scale_model(folder / "m.onnx")
        np.save(folder / "data.npy", ROWS)
        (folder / "labels.txt").write_text("a\nb\nc\nd\n")
        self._documents = [yaml.safe_load(text) for text in MANIFESTS]
        self._values = [value for document in self._documents for _, _, value in _places(document)]

    def make(self, chance: random.Random) -> Case:
        document = json.loads(json.dumps(chance.choice(self._documents)))
        for _ in range(chance.choice([1, 1, 1, 1, 2, 3])):
            _change(*chance.choice(list(_places(document))), chance, self._values)
        text = yaml.safe_dump(document, allow_unicode=True, width=10_000)
        raw = text.encode("utf-8", errors="surrogatepass")
        if chance.random() < 0.05:
            raw = damaged(raw, chance)
        (self._folder / "m.yaml").write_bytes(raw)
        return Case(["plan", "m.yaml"], "m.yaml")


def _change(holder: Any, key: Any, value: Any, chance: random.Random, values: Sequence[Any]) -> None:
    """Change one place of a document: mostly into something that the schema accepts, so that it is planned."""
    kind = chance.randrange(12)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1:
        holder[key] = chance.choice(_ODD)
    elif kind == 2 and isinstance(holder, dict):
        holder[chance.choice(["x", "path", "model", "size", "columns"])] = value
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = value * chance.choice([-1, 1, 1, 1, 2, 3, 1000, 2**40]) + chance.choice([-1, 0, 1, 1, 2])
    elif isinstance(value, list) and value:
        place = chance.randrange(len(value))
        value[place : place + chance.randrange(2)] = [json.loads(json.dumps(chance.choice(value)))]
    elif isinstance(value, str) and value and kind < 7:
        place = chance.randrange(len(value))
        holder[key] = value[:place] + chance.choice(["", "x", "*", "/", "..", "é", " ", ":"]) + value[place + 1 :]
    elif not isinstance(value, dict):
        holder[key] = chance.choice([other for other in values if type(other) is type(value)])


_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, float("inf"), float("nan"), 2**70, "", " ", "*", "..", "\x00", "a\nb", "💥", [], {}, [[]],
    [None], {"": ""}, {"a": {"b": []}}, "512MiB", "1%", "x" * 5000, "$x", "file:///etc/passwd", "s3://", "~", "no",
)  # fmt: skip

MANIFESTS = (
    """
version: 1
models:
  m:
    path: m.onnx
    providers: [CPU]
    session: {graph_optimization_level: all, intra_op_num_threads: 1, config: {session.intra_op.allow_spinning: false}}
    inputs: {x: {dtype: float32, shape: [batch, 4]}}
    outputs: {y: {dtype: float32, shape: [batch, 4]}}
jobs:
  run:
    model: m
    input: {path: data.npy, columns: {x: array}, key: [row, path]}
    prepare: {x: [{scale: 0.5}, {cast: float32}]}
    batch: {size: 8, last: short}
    postprocess: [{argmax: y, as: digit}, {softmax: y, as: probability}, {labels: digit, from: labels.txt, as: name}]
    output: {path: out, format: jsonl, columns: [digit, probability, name], rows_per_part: 100}
    errors: {max_failed: 1%, retries: 2, on_nan: fail}
    limits: {memory: 512MiB, threads: 2}
""",
    """
version: 1
name: demo
providers: {chain: [CPU]}
models:
  m: {path: m.onnx, providers: chain, on_unavailable: next, cpu_fallback: warn, memory: lean}
  two: {path: m.onnx, sessions: [{name: a, providers: [CPU], count: 2}, {name: b, providers: [CPU]}], use: all}
pipelines:
  twice:
    steps:
      - {run: m, in: {x: $items}, out: {y: once}}
      - {run: two, in: {x: $once}, out: {y: again}}
    outputs: {result: $again}
jobs:
  run: {pipeline: twice, input: {path: "*.npy", columns: {items: array}}, output: {path: out, format: npz}, batch: {size: 4}}
  other: {model: two, input: {path: [data.npy], format: npy}, output: {path: other, format: csv}, batch: {size: 5, last: drop}}
""",
)


def _places(value: Any) -> list[tuple[Any, Any, Any]]:
    """Every place in a document: what holds it, its key or index, and the value."""
    found: list[tuple[Any, Any, Any]] = []
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in pairs:
        found += [(value, key, inner), *_places(inner)]
    return found


KINDS: Mapping[str, Callable[[Path], Any]] = {"inputs": Inputs, "files": Files, "manifests": Manifests}
