"""A job whose rows choose between a model and the model with an adapter, for providers that it is tried on."""

import json
from pathlib import Path

import numpy as np

from support.models import lora_model, make_adapter

MANIFEST = """\
version: 1
models:
  m: {{path: m.onnx, {model}}}
adapters:
  a: {{path: a.onnx_adapter, model: m}}
jobs:
  run:
    model: m
    adapter: {{column: language, map: {{fr: a}}, otherwise: none}}
    input: {{path: data.jsonl}}
    output: {{path: out}}
"""


def write_adapter_job(folder: Path, model: str, *, required: bool) -> Path:
    """Write six rows, every second of which takes the adapter, and return the manifest; `model` are the model's keys."""
    lora_model(folder / "m.onnx", required=required)
    matrices = {"lora_A": np.ones((4, 2), np.float32), "lora_B": np.full((2, 4), 0.125, np.float32)}
    make_adapter(folder / "a.onnx_adapter", **matrices)
    rows = [{"x": [number] * 4, "language": "fr" if number % 2 else "de"} for number in range(6)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "m.yaml"
    path.write_text(MANIFEST.format(model=model))
    return path
