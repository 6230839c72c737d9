"""Names of others never control what shows them: no command passes a control character on, in any form of its output."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, Cli
from support.models import scale_model

NAME = "a\x1b]0;owned\x07b\u202ec\x85d\u2028e\x9b31mf\rg"
RAW = re.compile("(?!\n)[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
QUOTED = '"' + "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in NAME) + '"'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / NAME
    folder.mkdir()
    scale_model(folder / "m.onnx")
    np.save(folder / "x.npy", np.ones((3, 4), np.float32))
    (folder / "checks").mkdir()
    np.savez(folder / "checks/inputs.npz", x=np.ones((3, 4), np.float32))
    np.savez(folder / "checks/outputs.npz", y=np.ones((3, 4), np.float32))
    (folder / "m.yaml").write_text(
        f"version: 1\nmodels: {{{QUOTED}: {{path: m.onnx, checks: [checks]}}}}\n"
        f"jobs: {{{QUOTED}: {{model: {QUOTED}, input: {{path: x.npy}}, report: [html, prometheus],\n"
        f'  output: {{path: {QUOTED[:-1]}/o", format: jsonl}}}}}}\n'
    )
    (folder / "bad.yaml").write_text(f"version: 1\nmodels: {{{QUOTED}: {{path: {QUOTED}, {QUOTED}: 1}}}}\n")
    return folder


COMMANDS = [
    ("validate", "-v"), ("lock",), ("plan",), ("plan", "-v"), ("apply",), ("status",), ("status", "-v"), ("verify",),
    ("check",), ("diff",), ("compact",), ("cache", "prune"), ("service",), ("apply",), ("plan", "--format", "json"),
    ("try",), ("retry",), ("finish",), ("apply", "--log-format", "console", "--log-level", "debug", "--new-run"),
]  # fmt: skip


def test_no_command_hands_on_a_control_character(site: Path, cli: Cli) -> None:
    shown: dict[str, tuple[int, str]] = {}
    for command in COMMANDS:
        answer = cli(*command, site / "m.yaml")
        shown[" ".join(command)] = answer.code, answer.out + answer.err
    for form in ("text", "github", "sarif", "json"):
        answer = cli("validate", "--format", form, site / "bad.yaml")
        assert answer.code == 1
        shown[f"validate {form}"] = answer.code, answer.out + answer.err
    for words in (("apply", site / NAME), ("explain", NAME), (NAME,), ("init", site / NAME), ("adapter", "show", NAME)):
        answer = cli(*words)
        shown[str(words)] = answer.code, answer.out + answer.err
        assert answer.code != 3
    raw = {command: found[0] for command, (_, text) in shown.items() if (found := RAW.search(text))}
    assert raw == {}
    assert shown["apply"][0] == 0, shown["apply"]
    reports = [site / NAME / "o/_run.html", site / NAME / "o/_run.prom"]
    assert [RAW.search(path.read_text()) for path in reports] == [None, None]


def test_what_commands_write_comes_from_a_view_or_is_made_safe() -> None:
    loose = []
    for path in sorted((REPOSITORY / "ortdeploy/cli").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in {"sys.stdout.write", "sys.stderr.write"}:
                loose += [f"{path.name}: {ast.unparse(call.args[0])}"] if _has_a_loose_name(call.args[0]) else []
    assert loose == []


def _has_a_loose_name(value: ast.expr) -> bool:
    """Whether a text with names in it is written that no function has made safe."""
    if isinstance(value, ast.JoinedStr):
        return any(isinstance(one, ast.FormattedValue) and _has_a_loose_name(one.value) for one in value.values)
    if isinstance(value, ast.BinOp):
        return _has_a_loose_name(value.left) or _has_a_loose_name(value.right)
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in {"str", "''.join", "repr", "'\\n'.join"}
    return isinstance(value, ast.Attribute | ast.Subscript)
