"""The profile that a device chose, in its status document, its metrics and the fleet; and why it could choose none."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from conftest import Cli, read_rows
from support.machines import GIB, Machine
from support.models import scale_model

from ortdeploy.facts.variants import Traits
from ortdeploy.planning.devices import variants
from ortdeploy.schemas import load_schema

MANIFEST = """\
version: 1
models: {m: {path: double.onnx, providers: [CPU]}}
jobs: {j: {model: m, input: {path: "inbox/*.npy"}, output: {path: out, on_upgrade: continue}}}
profiles:
  gpu: {when: {provider: CUDA, memory: ">= 6GiB"}, jobs: {j: {batch: {size: 2}}}}
  paint:
    when: {labels: {line: paint}, not: {provider: CUDA}}
    jobs: {extra: {model: m, input: {path: "inbox/*.npy"}, output: {path: more}}}
  otherwise: base
"""
BOTH = MANIFEST.replace("labels: {line: paint}, not: {provider: CUDA}", "cores: '>= 1'")
GATED = MANIFEST.replace("[CPU]}", "[CPU], gate: true, checks: [golden]}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    scale_model(tmp_path / "double.onnx")
    (tmp_path / "inbox").mkdir()
    np.save(tmp_path / "inbox/a.npy", np.ones((4, 4), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


def said(folder: Path) -> dict[str, Any]:
    (path,) = (folder / ".ortdeploy/status").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(found, load_schema("status"))
    return found


def metrics(folder: Path) -> str:
    (path,) = folder.glob("*.prom")
    return path.read_text()


def test_the_chosen_profile_is_said_with_its_reason_its_facts_and_since_when(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(name="line-4", opens=("CUDA", "CPU"), labels={"site": "12"}).become(monkeypatch)
    assert cli("apply", "m.yaml", "--metrics", folder).code == 0
    first = said(folder)
    assert (first["device"]["name"], first["device"]["labels"]) == ("line-4", {"site": "12"})
    facts = {"provider CUDA": True, "memory": 8 * GIB, "labels.line": None}
    assert {**first["profile"], "since": ""} == {"name": "gpu", "reason": "when", "facts": facts, "since": ""}
    text = metrics(folder)
    assert 'profile="gpu",profile_reason="when"' in text
    assert 'fact="memory",value="8.00 GiB"' in text
    (folder / "inbox/b.npy").write_bytes((folder / "inbox/a.npy").read_bytes())
    assert cli("apply", "m.yaml").code == 0
    assert said(folder)["profile"] == first["profile"], "since the first one"
    assert "gpu (when)" in cli("fleet", ".ortdeploy/status", "--report", "fleet.html").out
    assert "provider CUDA: opens" in (folder / "fleet.html").read_text()


def test_label_flags_are_said_too(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(labels={"site": "12"}).become(monkeypatch)
    assert cli("apply", "m.yaml", "--label", "line=paint").code == 0
    found = said(folder)
    assert (found["device"]["labels"], found["profile"]["name"]) == ({"line": "paint"}, "paint")


@pytest.mark.parametrize(("flags", "reason"), [(("--profile", "none"), "flag"), ((), "environment")])
def test_a_profile_that_was_asked_for_is_said_so(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setenv("ORTDEPLOY_PROFILE", "paint")
    assert cli("apply", "m.yaml", *flags).code == 0
    found = said(folder)["profile"]
    assert (found["name"], found["reason"], found["facts"]) == (None if flags else "paint", reason, {})


def test_a_loss_is_said_with_the_profile_that_was_kept_and_its_jobs(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(labels={"line": "paint"}).become(monkeypatch)
    assert cli("apply", "m.yaml").code == 0
    before = said(folder)
    Machine(labels={"line": "paint"}, opens=("CUDA", "CPU")).become(monkeypatch)
    assert cli("apply", "m.yaml").code == 0
    with_gpu = said(folder)
    assert with_gpu["profile"]["since"] > before["profile"]["since"]
    Machine(labels={"line": "paint"}).become(monkeypatch)
    for _ in range(2):
        assert cli("apply", "m.yaml", "--metrics", folder).code == 1
        found = said(folder)
        assert (found["state"], found["refusal"]["rule"]) == ("refused", "profile-changed")
        assert found["profile"] == {**with_gpu["profile"], "reason": "kept"}
        assert found["jobs"] == with_gpu["jobs"]
        assert 'rule="profile-changed"} 1' in metrics(folder)
    shown = cli("fleet", ".ortdeploy/status")
    assert (shown.code, "gpu (kept)" in shown.out, "[profile-changed], m.yaml:4" in shown.words) == (1, True, True)
    assert cli("apply", "m.yaml", "--choose").code == 0
    assert (said(folder)["state"], said(folder)["profile"]["name"]) == ("current", "paint")


@pytest.mark.parametrize(
    ("text", "memory", "rule"), [(BOTH, 8 * GIB, "ambiguous-profile"), (MANIFEST, None, "undecided-profile")]
)
def test_a_device_that_cannot_choose_says_so_and_keeps_what_it_ran(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, memory: int | None, rule: str
) -> None:
    Machine(opens=("CUDA", "CPU")).become(monkeypatch)
    assert cli("apply", "m.yaml").code == 0
    before = said(folder)
    (folder / "m.yaml").write_text(text)
    monkeypatch.setattr(variants, "traits_here", lambda _: Traits(labels={}, memory=memory, cores=4))
    assert cli("apply", "m.yaml", "--metrics", folder).code == 1
    found = said(folder)
    assert (found["state"], found["refusal"]["rule"], found["profile"]["name"]) == ("refused", rule, "gpu")
    assert (found["version"], found["jobs"]) == (before["version"], before["jobs"])
    assert f'rule="{rule}"}} 1' in metrics(folder)
    assert f"[{rule}]" in cli("fleet", ".ortdeploy/status").words


def with_golden(folder: Path) -> None:
    (folder / "golden").mkdir()
    for name, value in (("input_0", 1.0), ("output_0", 2.0)):
        tensor = onnx.numpy_helper.from_array(np.full((2, 4), value, np.float32), "xy"[name == "output_0"])
        (folder / f"golden/{name}.pb").write_bytes(tensor.SerializeToString())


def test_a_profile_whose_golden_check_passes_is_kept(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_golden(folder)
    (folder / "m.yaml").write_text(GATED)
    Machine(opens=("CUDA", "CPU")).become(monkeypatch)
    assert cli("apply", "m.yaml").code == 0
    Machine().become(monkeypatch)
    assert "profile-changed" in cli("apply", "m.yaml").out


def test_a_profile_whose_golden_check_fails_is_not_said_to_run(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver comes late, and with it a profile that has never run well here."""
    scale_model(folder / "wrong.onnx", factor=7.0)
    with_golden(folder)
    (folder / "m.yaml").write_text(GATED.replace("jobs: {j: {batch: {size: 2}}}", "models: {m: {path: wrong.onnx}}"))
    Machine().become(monkeypatch)
    assert cli("apply", "m.yaml", "--last-good").code == 0
    before = said(folder)
    (folder / "inbox/b.npy").write_bytes((folder / "inbox/a.npy").read_bytes())
    Machine(opens=("CUDA", "CPU")).become(monkeypatch)
    for _ in range(2):
        assert cli("apply", "m.yaml", "--last-good").code == 1
        found = said(folder)
        assert {row["y"][0] for row in read_rows(folder / "out")} == {2.0}
        assert (found["state"], found["refusal"]["summary"]) == ("refused", "A golden check did not pass")
        assert (found["profile"], found["version"]) == (before["profile"], before["version"])
    Machine().become(monkeypatch)
    assert cli("apply", "m.yaml", "--last-good").code == 0, "nothing is lost that has run"
    assert [row["y"][0] for row in read_rows(folder / "out")] == [2.0] * 8
    assert said(folder)["profile"]["since"] == before["profile"]["since"]
