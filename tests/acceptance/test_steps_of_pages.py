"""Pipelines of the pages about steps, with small models that give known answers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from conftest import REPOSITORY, Cli
from onnx import TensorProto, helper
from support.models import save_model

Node = helper.make_node


def pipeline(page: str, name: str) -> str:
    """Return the section of a page that has a pipeline of this name, without its first line."""
    blocks = re.findall(r"```yaml\npipelines:\n(.*?)```", (REPOSITORY / "docs" / page).read_text("utf-8"), re.DOTALL)
    found: str = next(block for block in blocks if block.startswith(f"  {name}:"))
    return found


def run(cli: Cli, folder: Path, manifest: str) -> list[dict[str, Any]]:
    (folder / "m.yaml").write_text(manifest)
    done = cli("apply", folder / "m.yaml", "-q")
    assert done.code == 0, done.err
    return [
        json.loads(line)
        for part in sorted((folder / "out").glob("part-*"))
        for line in part.read_text("utf-8").splitlines()
    ]


def test_marks_of_where_words_begin_become_words(cli: Cli, tmp_path: Path) -> None:
    nodes = [Node("Mod", ["input", "two"], ["odd"]), Node("Cast", ["odd"], ["output"], to=TensorProto.FLOAT)]
    tokens = ["n", "tokens"]
    inputs, outputs = {"input": (TensorProto.INT64, tokens)}, {"output": (TensorProto.FLOAT, tokens)}
    save_model(tmp_path / "cut.onnx", nodes, inputs, outputs, {"two": np.array(2, np.int64)})
    (tmp_path / "letters.json").write_text(json.dumps({letter: ord(letter) for letter in "abcd"}))
    (tmp_path / "t.txt").write_text("abcd\ncab\n\n")
    found = run(
        cli,
        tmp_path,
        f"version: 1\nmodels: {{cut: {{path: cut.onnx}}}}\npipelines:\n{pipeline('text.md', 'words')}"
        "jobs: {r: {pipeline: words, input: {path: t.txt, key: [row]}, output: {path: out, format: jsonl}}}\n",
    )
    assert [row["cut"] for row in found] == ["ab|cd", "c|ab", ""]  # a and c have odd numbers
