"""Profiles that are chosen by `when`, through the whole program: what runs, what is kept, and what is refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import effort
from support.machines import GIB, Machine
from support.models import scale_model
from support.remembered_plans import everything_is_old

from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.planning.file_selection import Arrivals

MANIFEST = """\
version: 1
models: {m: {path: double.onnx, providers: [CPU]}}
jobs:
  j:
    model: m
    input: {path: inbox/*.npy, key: [row], on_empty: done}
    output: {path: out, columns: [y], on_upgrade: continue}
profiles:
  gpu:
    when: {provider: CUDA}
    models: {m: {path: triple.onnx}}
  paint:
    when: {labels: {line: paint}, not: {provider: CUDA}}
    models: {k: {path: other.onnx}}
    jobs: {extra: {model: k, input: {path: inbox/*.npy, key: [row]}, output: {path: more}}}
  otherwise: base
"""
WITH_GPU, WITHOUT = ("CUDA", "CPU"), ("CPU",)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name, factor in (("double", 2.0), ("triple", 3.0), ("other", 4.0)):
        scale_model(tmp_path / f"{name}.onnx", width=1, factor=factor)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "m.yaml").write_text(MANIFEST)
    with everything_is_old():
        yield tmp_path


def arrive(folder: Path, name: str) -> None:
    np.save(folder / f"inbox/{name}.npy", np.ones((2, 1), np.float32))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda opens, **more: Machine(opens=opens, **more).become(monkeypatch)


On = Callable[..., None]


def factors(folder: Path, output: str = "out") -> list[float]:
    return [float(row["y"][0]) for row in read_rows(folder / output)]


def report(folder: Path) -> dict[str, object]:
    choice: dict[str, object] = json.loads((folder / "out/_run.json").read_text())["invocation"]["choice"]
    return choice


def test_the_profile_that_holds_runs_and_is_told(cli: Cli, folder: Path, on: On) -> None:
    arrive(folder, "a")
    on(WITH_GPU)
    assert "m (m.yaml), profile gpu (when)\n" in cli("plan", "m.yaml").out
    (planned,) = cli("plan", "m.yaml", "--format", "json").json["profiles"]
    assert (planned["name"], planned["reason"], planned["since"]) == ("gpu", "when", None)
    assert not (folder / ".ortdeploy").exists()
    assert cli("apply", "m.yaml").code == 0
    assert factors(folder) == [3, 3]
    told = report(folder)
    assert (told["name"], told["reason"], told["facts"]) == (
        "gpu",
        "when",
        {"provider CUDA": True, "labels.line": None},
    )
    assert "m.yaml: profile gpu (kept) since 20" in cli("status", "m.yaml").out
    (kept,) = cli("status", "m.yaml", "--format", "json").json["profiles"]
    assert {**told, "reason": "kept", "manifest": "m.yaml"} == kept


def test_a_loss_runs_nothing_until_it_is_back_and_no_row_runs_twice(cli: Cli, folder: Path, on: On) -> None:
    for name, opens in (("a", WITHOUT), ("b", WITH_GPU)):  # a driver that was late
        arrive(folder, name)
        on(opens)
        assert cli("apply", "m.yaml").code == 0
    for _ in range(2):
        arrive(folder, "c")
        on(WITHOUT)
        for command in ("plan", "apply", "apply"):
            refused = cli(command, "m.yaml")
            assert refused.code == 1
            assert "profile-changed" in refused.out
            assert "provider CUDA" in refused.words
        assert factors(folder) == [2, 2, 3, 3]
        assert "profile-changed" in cli("status", "m.yaml").out
    on(WITH_GPU)
    assert cli("apply", "m.yaml").code == 0
    assert factors(folder) == [2, 2, 3, 3, 3, 3]
    assert "profile-changed" not in cli("status", "m.yaml").out
    arrive(folder, "d")
    on(WITHOUT)
    assert cli("apply", "m.yaml", "--choose").code == 0
    assert factors(folder) == [2, 2, 3, 3, 3, 3, 2, 2]
    assert cli("apply", "m.yaml").code == 0


def test_a_remembered_answer_rests_on_the_facts_of_all_conditions(cli: Cli, folder: Path, on: On) -> None:
    arrive(folder, "a")
    on(WITHOUT)
    for _ in range(4):
        done = cli("apply", "m.yaml")
        assert done.code == 0
    assert (folder / ".ortdeploy/memo/answer").exists()
    on(WITH_GPU)
    assert "profile gpu (when)" in cli("apply", "m.yaml").out
    on(WITHOUT)
    assert cli("apply", "m.yaml").code == 1  # it is not the answer of before


def test_a_remembered_plan_does_not_outlive_a_choice(cli: Cli, folder: Path, on: On) -> None:
    on(WITHOUT)
    for name in "abcd":
        arrive(folder, name)
        assert cli("apply", "m.yaml").code == 0
    assert (folder / ".ortdeploy/memo/plan").exists()
    on(WITH_GPU)
    assert cli("apply", "-q", "m.yaml").code == 0  # for whose words something else is remembered
    on(WITHOUT)
    arrive(folder, "f")
    assert cli("apply", "m.yaml").code == 1
    assert factors(folder) == [2] * 8


def test_flags_and_the_environment_ask_nothing(cli: Cli, folder: Path, on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    arrive(folder, "a")
    on(WITH_GPU)
    assert cli("apply", "m.yaml", "--profile", "none").code == 0
    assert (factors(folder), report(folder)["reason"]) == ([2, 2], "flag")
    monkeypatch.setenv("ORTDEPLOY_PROFILE", "paint")
    arrive(folder, "b")
    assert cli("apply", "m.yaml").code == 0
    assert (factors(folder, "more"), report(folder)["reason"]) == ([4] * 4, "environment")
    assert cli("status", "m.yaml", "--format", "json").json["jobs"][1]["job"] == "extra"


def test_labels_and_names_come_from_flags_and_the_environment(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, on: On
) -> None:
    arrive(folder, "a")
    on(WITHOUT)
    named = MANIFEST.replace("labels: {line: paint}", "labels: {line: paint}, name: east-*")
    (folder / "m.yaml").write_text(named)
    monkeypatch.setenv("ORTDEPLOY_DEVICE", "east-3")
    monkeypatch.setenv("ORTDEPLOY_LABELS", "site=1, line=paint")
    assert "profile paint (when)" in cli("plan", "m.yaml").out
    assert "profile base (otherwise)" in cli("plan", "m.yaml", "--label", "line=wood").out
    assert cli("plan", "m.yaml", "--label", "line=a", "--label", "line=b").code == 64
    for wrong in ("line", "=x", "li ne=x"):
        monkeypatch.setenv("ORTDEPLOY_LABELS", wrong)
        assert cli("plan", "m.yaml").code == 64


@settings(max_examples=effort(2, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([WITH_GPU, WITHOUT]), min_size=3, max_size=6))
def test_whatever_comes_and_goes_no_row_runs_twice_and_no_profile_comes_back(
    cli: Cli, folder: Path, history: list[tuple[str, ...]]
) -> None:
    for left in ("out", ".ortdeploy", "inbox"):
        shutil.rmtree(folder / left, ignore_errors=True)
    (folder / "inbox").mkdir()
    for number, opens in enumerate(history):
        arrive(folder, f"{number}")
        with pytest.MonkeyPatch.context() as patch:
            Machine(opens=opens).become(patch)
            code = cli("apply", "m.yaml").code
        has_had = WITH_GPU in history[: number + 1]
        assert code == (1 if has_had and opens == WITHOUT else 0)
    with pytest.MonkeyPatch.context() as patch:
        Machine(opens=WITH_GPU).become(patch)
        assert cli("apply", "m.yaml").code == 0
    found = factors(folder)
    first = history.index(WITH_GPU) if WITH_GPU in history else len(history)
    assert found == [2.0] * 2 * first + [3.0] * 2 * (len(history) - first)


def test_the_last_good_version_does_not_run_after_a_loss(cli: Cli, folder: Path, on: On) -> None:
    arrive(folder, "a")
    on(WITH_GPU)
    assert cli("apply", "m.yaml", "--last-good").code == 0
    arrive(folder, "b")
    on(WITHOUT)
    assert cli("apply", "m.yaml", "--last-good").code == 1
    assert factors(folder) == [3, 3]
    on(WITH_GPU)
    (folder / "m.yaml").write_text(MANIFEST + "unknown: 1\n")
    assert cli("apply", "m.yaml", "--last-good").code == 1
    assert factors(folder) == [3, 3, 3, 3]  # what is kept is found by what was asked, not by what was chosen


def test_on_end_is_told_of_a_device_without_a_profile(cli: Cli, folder: Path, on: On) -> None:
    tell = "on_end: {command: [sh, -c, 'cat > told.json']}\n"
    (folder / "m.yaml").write_text(MANIFEST.replace("otherwise: base", "otherwise: refuse") + tell)
    on(WITHOUT)
    assert cli("apply", "m.yaml").code == 1
    (why,) = json.loads((folder / "told.json").read_text())["refused"]
    assert why.startswith("no-profile: ")


def test_an_open_plan_is_held_against_what_holds_here(cli: Cli, folder: Path, on: On) -> None:
    arrive(folder, "a")
    on(WITHOUT)
    (folder / "here.yaml").write_text(cli("device").out)
    (folder / "m.yaml").write_text(f"{MANIFEST}on_end: {{command: [sh, -c, 'cat > told.json']}}\n")
    for opens, name in ((WITH_GPU, "gpu"), (WITHOUT, "base")):
        text = (folder / "here.yaml").read_text().replace("opens: [CPU]", f"opens: [{', '.join(opens)}]")
        (folder / f"{name}.yml").write_text(text)
        assert cli("plan", "m.yaml", "--device", f"{name}.yml", "--out", f"{name}.json").code == 0
    saved = json.loads((folder / "gpu.json").read_text())["plans"][0]["options"]
    assert saved["choice"] == {"reason": "when", "facts": {"labels.line": None, "provider CUDA": True}}
    refused = cli("apply", "gpu.json")
    assert refused.code == 1
    assert "moved-fact" in refused.out
    assert "gpu, and base holds here" in refused.words
    assert json.loads((folder / "told.json").read_text())["exit_code"] == 1
    assert cli("apply", "base.json").code == 0
    assert report(folder)["reason"] == "otherwise"


def test_a_bound_plan_keeps_its_choice(cli: Cli, folder: Path, on: On) -> None:
    arrive(folder, "a")
    on(WITH_GPU)
    assert cli("plan", "m.yaml", "--out", "plan.json").code == 0
    on(WITHOUT)
    for shard in ("0/2", "1/2"):
        assert cli("apply", "plan.json", "--shard", shard).code == 0
    assert cli("finish", "plan.json").code == 0
    assert factors(folder) == [3, 3]


def test_what_must_know_all_profiles_does(cli: Cli, folder: Path, on: On) -> None:
    arrive(folder, "a")
    on(WITHOUT)
    (folder / "m.yaml").write_text(
        MANIFEST.replace("{path: triple.onnx}", "{path: triple.onnx, providers: [CUDA, CPU]}")
    )
    assert "char-nvidia" in cli("service", "m.yaml").out
    assert set(Arrivals(["m.yaml"], LoadOptions()).jobs) == {"j", "extra"}
    assert cli("apply", "m.yaml", "--label", "line=paint").code == 0
    freed = cli("cache", "prune", "m.yaml", "--profile", "gpu", "--format", "json").json
    of_jobs = {"told", "store", "manifests"}
    assert sum(one["freed"] for state in freed["states"] for one in state["caches"] if one["cache"] in of_jobs) == 0
    assert cli("lock", "m.yaml").code == 0
    assert cli("lock", "m.yaml", "--check").code == 0
    assert (folder / "m.yaml").read_text().count("sha256") == 3
    on(WITH_GPU)
    assert "digest-mismatch" not in cli("plan", "m.yaml").out


def test_memory_of_the_system_counts_and_not_what_a_group_may_use(cli: Cli, folder: Path, on: On) -> None:
    (folder / "m.yaml").write_text(MANIFEST.replace("{provider: CUDA}\n", '{memory: ">= 6GiB"}\n', 1))
    on(WITHOUT, memory=7 * GIB)
    assert "profile gpu (when)" in cli("plan", "m.yaml").out
    on(WITHOUT, memory=5 * GIB)
    assert "profile base (otherwise)" in cli("plan", "m.yaml").out
