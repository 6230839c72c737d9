"""The documented failures of LoRA adapters, from users' issue threads, one by one: each wrong and right, for real."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from support.models import lora_model, make_adapter, scale_model

A, B = np.ones((4, 2), np.float32), np.full((2, 4), 0.5, np.float32)
MANIFEST = """\
version: 1
models:
  m: {{path: m.onnx{session}}}
adapters:
  a: {{path: {path}, model: m{more}}}
{others}jobs:
  run:
    model: m
    adapter: {adapter}
    input: {{path: x.npy}}
    output: {{path: out}}
"""
Build = Callable[[Path], object]


def pair(folder: Path, name: str = "a", **changes: np.ndarray) -> Path:
    return make_adapter(folder / f"{name}.onnx_adapter", **{"lora_A": A, "lora_B": B, **changes})


def safetensors(folder: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (folder / "a.onnx_adapter").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)


def cut(folder: Path) -> None:
    raw = pair(folder).read_bytes()
    (folder / "a.onnx_adapter").write_bytes(raw[: len(raw) // 2])


def newer(folder: Path) -> None:
    """The format version, an int32 with the value 1, is the first field of the table behind its virtual table."""
    raw = bytearray(pair(folder).read_bytes())
    root = struct.unpack_from("<I", raw)[0]
    table = root - struct.unpack_from("<i", raw, root)[0]
    struct.pack_into("<i", raw, root + struct.unpack_from("<H", raw, table + 4)[0], 2)
    (folder / "a.onnx_adapter").write_bytes(raw)


def linked(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (folder / "a.onnx_adapter").symlink_to(pair(outside))


def half(folder: Path) -> None:
    make_adapter(folder / "a.onnx_adapter", lora_A=A)


def two(folder: Path) -> None:
    pair(folder)
    pair(folder, "b")


SECOND = "  b: {path: b.onnx_adapter, model: m}\n"
Case = tuple[str, Build, dict[str, str], str, str]
CASES: list[Case] = [
    # number, how it is made wrong, what the manifest says, rule, a part of what is said
    ("F64", pair, {"more": ", device: cpu"}, "adapter-placement", "Expecting on device allocator for LoraAdapter"),
    ("F65", safetensors, {}, "unreadable-adapter", "ortdeploy adapter convert"),
    ("F65", cut, {}, "unreadable-adapter", "cut off or damaged"),
    ("F65", newer, {}, "unreadable-adapter", "its format version is 2, and 1 is known"),
    ("F65", lambda _: None, {}, "unreadable-adapter", "There is no file a.onnx_adapter"),
    ("F65", linked, {}, "unreadable-adapter", "is a link out of the manifest's folder tree"),
    ("F66", lambda f: make_adapter(f / "a.onnx_adapter", loraA=A), {}, "adapter-mismatch", 'no input "loraA". Did you mean "lora_A"?'),
    ("F66", lambda f: (pair(f), scale_model(f / "m.onnx")), {}, "adapter-mismatch", "the graph has no LoRA inputs; it takes x"),
    ("F67", lambda f: pair(f, lora_A=A.T.copy()), {}, "adapter-mismatch", '"lora_A" is [2, 4], and the graph takes [4, rank]. It looks transposed.'),
    ("F67", lambda f: pair(f, lora_B=B.astype(np.float16)), {}, "adapter-mismatch", '"lora_B" is float16, and the graph takes float32.'),
    ("F67", lambda f: pair(f, lora_B=np.ones((8, 4), np.float32)), {}, "adapter-mismatch", '"rank" must be one number'),
    ("F67", half, {}, "adapter-mismatch", 'makes it 2, and the default of "lora_B" makes it 0'),
    ("F71", two, {"others": SECOND, "adapter": "[a, b]"}, "overlapping-adapters", 'would use those of "a" alone'),
    ("F71", pair, {"more": ", model_version: 7"}, "adapter-mismatch", "made for version 1 of the model, and model_version says 7"),
    ("F71", pair, {"more": ", adapter_version: 7"}, "adapter-mismatch", "its own version is 1, and adapter_version says 7"),
    ("F71", pair, {"adapter": "none"}, "unused-declaration", 'No job uses the adapter "a"'),
]  # fmt: skip


def manifest(folder: Path, **said: str) -> Path:
    chosen = {"path": "a.onnx_adapter", "more": "", "others": "", "adapter": "a", "session": "", **said}
    (folder / "m.yaml").write_text(MANIFEST.format(**chosen))
    np.save(folder / "x.npy", np.ones((3, 4), np.float32))
    return folder / "m.yaml"


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[3]}-{index}" for index, case in enumerate(CASES)])
def test_it_is_said_before_anything_runs(cli: Cli, tmp_path: Path, case: Case) -> None:
    _, make, said, rule, part = case
    folder = tmp_path / "case"
    folder.mkdir()
    lora_model(folder / "m.onnx")
    make(folder)
    found = cli("plan", manifest(folder, **said), "--format", "json").json["diagnostics"]
    details = [one["detail"] for one in found if one["rule"] == rule]
    assert any(part in detail for detail in details), found


def test_right_it_runs(cli: Cli, tmp_path: Path) -> None:
    lora_model(tmp_path / "m.onnx")
    pair(tmp_path)
    path = manifest(tmp_path, more=", model_version: 1, adapter_version: 1")
    assert cli("plan", path, "--format", "json").json["diagnostics"] == []
    assert cli("apply", path, "-q").code == 0
    assert [json.loads(line)["y"] for line in (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()] == [
        [5.0] * 4
    ] * 3


def test_lora_inputs_without_defaults_are_fed(cli: Cli, tmp_path: Path) -> None:
    """F69: the binding says "Required inputs (['lora_A', 'lora_B']) are missing from input feed"."""
    lora_model(tmp_path / "m.onnx", required=True)
    pair(tmp_path)
    assert cli("apply", manifest(tmp_path), "-q").code == 0
