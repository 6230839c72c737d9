"""Small models that were drawn at random, with data that may fit: `init` writes what its own plan takes, or says what not.

ORTDEPLOY_RANDOM_MODELS is their number, ORTDEPLOY_RANDOM_MODELS_SEED says which ones.
"""

import csv
import json
import os
import random
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from conftest import Cli
from onnx import TensorProto, helper
from PIL import Image

NUMBER = int(os.environ.get("ORTDEPLOY_RANDOM_MODELS", "12"))
SEED = int(os.environ.get("ORTDEPLOY_RANDOM_MODELS_SEED", "0"))
Node = helper.make_node
Sizes = list[int | str | None]

TYPES = {
    "float": TensorProto.FLOAT,
    "half": TensorProto.FLOAT16,
    "double": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
    "string": TensorProto.STRING,
}
NAMES = (
    "x",
    "input",
    "audio",
    "wav",
    "length",
    "sr",
    "input_ids",
    "mask",
    "scale",
    "threshold",
    "image",
    "row",
    "a b",
    "größe",
)
SYMBOLS = ("batch", "n", "N", "sequence", "time", "h", "w", "unk__1", "floor(h/2)")


PICTURES: tuple[Sizes, ...] = ([3, 32, 32], [1, 28, 28], [3, "h", "w"], [32, 32, 3])


class Model:
    """A graph that was drawn: each input is cast, reduced or kept, and one or several outputs are made of them."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        names = draw.sample(NAMES, draw.choice((1, 1, 1, 2, 2, 3)))
        kinds = {name: draw.choice(("float",) * 6 + tuple(TYPES)) for name in names}
        self.inputs = {name: (kind, self._shape(5 if kind != "string" else 2)) for name, kind in kinds.items()}

    def _shape(self, most: int) -> Sizes:
        draw = self._draw
        rank = min(most, draw.choice((0, 1, 2, 2, 2, 3, 4, 4, 5)))  # millions of texts take gigabytes
        first: list[Sizes] = [["batch"], ["n"], [None], [1], [draw.randint(2, 8)], ["N"]]
        rest: list[int | str | None] = [
            draw.choice((1, 2, 3, 4, 16, 32, None, *SYMBOLS)) for _ in range(max(rank - 1, 0))
        ]
        if rank == 4 and draw.random() < 0.6:
            rest = draw.choice(PICTURES)
        if rank == 2 and draw.random() < 0.3:
            rest = [draw.choice((160, 4000, 16000))]
        return draw.choice(first) + rest if rank else []

    def save(self, path: Path) -> None:
        draw = self._draw
        for place, (name, (kind, shape)) in enumerate(self.inputs.items()):
            self._end(name, kind, shape, f"y{place}")
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(name, TYPES[kind], shape) for name, (kind, shape) in self.inputs.items()],
            self.outputs,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        if draw.random() < 0.2:
            helper.set_model_props(
                model, {"names": "['a', 'b', 'c']", "stride": "32", "task": draw.choice(("detect", "obb"))}
            )
        onnx.save(model, str(path))

    def _end(self, name: str, kind: str, shape: Sizes, output: str) -> None:
        """Make an output of an input: as it is, a softmax, a mean, a sequence, or a map of no known shape."""
        draw = self._draw
        floating = kind in {"float", "half", "double"}
        ways = ["same", "same", "unknown"]
        ways += ["softmax", "mean", "log"] if floating and shape else []
        ways += ["sequence"] if kind == "float" and len(shape) > 1 else []
        way = draw.choice(ways)
        given: Sizes | None = shape
        match way:
            case "softmax":
                self.nodes.append(Node("Softmax", [name], [output], axis=draw.choice((-1, 0, len(shape) - 1))))
            case "mean":
                self.nodes.append(
                    Node("ReduceMean", [name], [output], axes=[len(shape) - 1], keepdims=draw.choice((0, 1)))
                )
                given = None
            case "log":
                self.nodes.append(Node("Log", [name], [output]))
            case "sequence":
                self.nodes.append(Node("SplitToSequence", [name], [output], axis=1))
                kept = helper.make_tensor_type_proto(TYPES[kind], None)
                self.outputs.append(helper.make_value_info(output, helper.make_sequence_type_proto(kept)))
                return
            case _:
                self.nodes.append(Node("Identity", [name], [output]))
                given = None if way == "unknown" else shape
        self.outputs.append(helper.make_tensor_value_info(output, TYPES[kind], given))


def tables(folder: Path, draw: random.Random) -> Path:
    columns = draw.sample(("a", "b", "c", "x", "name", "low"), draw.randint(1, 5))
    with (folder / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in range(draw.choice((0, 1, 5))):
            writer.writerow(["text" if column == "name" else draw.choice((row, "", 0.5)) for column in columns])
    return folder / "t.csv"


def pictures(folder: Path, draw: random.Random) -> Path:
    (folder / "mixed").mkdir()
    for number in range(draw.randint(1, 4)):
        suffix = draw.choice(("png", "jpg", "PNG"))
        Image.new("RGB", (draw.randint(1, 60), 40), (number, 90, 3)).save(folder / f"mixed/{number}.{suffix}")
    if draw.random() < 0.5:
        (folder / "mixed/notes.txt").write_text("one\n")
    return folder / "mixed"


def recordings(folder: Path, draw: random.Random) -> Path:
    (folder / "heard").mkdir()
    for number in range(draw.randint(1, 3)):
        samples = np.full(draw.choice((0, 100, 8000)), 999, "<i2")
        with wave.open(str(folder / f"heard/{number}.wav"), "wb") as file:
            file.setparams((1, 2, draw.choice((16000, 16000, 8000)), 0, "NONE", ""))
            file.writeframes(samples.tobytes())
    return folder / "heard"


def arrays(folder: Path, draw: random.Random) -> Path:
    shape = tuple(draw.choice((1, 2, 3, 4, 8)) for _ in range(draw.randint(1, 4)))
    np.save(folder / "a.npy", np.ones(shape, draw.choice((np.float32, np.float64, np.int64))))
    return folder / "a.npy"


def texts(folder: Path, draw: random.Random) -> Path:
    (folder / "t.txt").write_text("one\ntwo words\n" * draw.randint(1, 3))
    return folder / "t.txt"


DATA: tuple[Callable[[Path, random.Random], Path], ...] = (tables, pictures, recordings, arrays, texts)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUMBER))
def test_what_init_writes_its_own_plan_takes_or_init_says_what_is_wrong(cli: Cli, tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED} {number}")  # noqa: S311  examples, no secrets
    Model(draw).save(tmp_path / "m.onnx")
    given = [] if draw.random() < 0.4 else ["--from", draw.choice(DATA)(tmp_path, draw)]
    manifest = tmp_path / "m.yaml"
    said = cli("init", tmp_path / "m.onnx", "-o", manifest, *given)
    assert said.code in {0, 1}, said.out + said.err
    assert "bug of ortdeploy" not in said.err
    if not manifest.is_file():
        assert said.code == 1
        assert said.err.startswith("ortdeploy: ")
        return
    text = manifest.read_text(encoding="utf-8")
    yaml.safe_load(text)
    made_up = [line for line in text.splitlines() if "# made up: " in line]
    planned = cli("plan", manifest)
    if said.code == 0:
        assert planned.code == 0, said.out + planned.out
        assert not made_up
        applied = cli("apply", manifest, "-q")
        assert applied.code == 0, text + applied.out + applied.err
        assert results(tmp_path) or "holds no row" in said.out, text
    else:
        told = ("does not run yet", "Made up in", "cannot say", "is NaN or infinite", "has no item in")
        assert any(one in said.out for one in told), said.out
        assert ("Made up in" in said.out) == bool(made_up)
        assert planned.code == 0 or "The manifest does not run yet." in said.out, said.out + planned.out


def results(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the output."""
    parts = sorted((folder / "outbox/m").glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
