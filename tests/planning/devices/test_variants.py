"""The choice of a profile by `when`, against a model of its own, and what is kept of choices."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from conftest import Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.effort import effort
from support.machines import FIELDS, GIB, Machine, holds, machines, whens

from ortdeploy.diagnostics import has_errors
from ortdeploy.facts.variants import Choice
from ortdeploy.manifest.loader import Loaded, LoadOptions, load_manifest
from ortdeploy.manifest.when import Boxes, implied
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.devices.device_file import load_device
from ortdeploy.planning.devices.kept_choices import keep_choice, last_choice
from ortdeploy.planning.devices.variants import by_device_file, on_this_machine
from ortdeploy.process.child import Answer
from ortdeploy.runtime import probe
from ortdeploy.runtime.library import ort
from ortdeploy.sessions import provider_trial

BASE: dict[str, Any] = {
    "version": 1,
    "models": {"double": {"path": "double.onnx", "providers": ["CPU"]}},
    "jobs": {"j": {"model": "double", "input": {"path": "x.npy"}, "output": {"path": "out"}}},
}
profiles = st.dictionaries(st.sampled_from("abcd"), whens, min_size=1, max_size=4)
others = st.sampled_from(["base", "refuse", "z"])


def load(folder: Path, conditions: dict[str, Any], otherwise: str = "base") -> Loaded:
    told = {name: {"when": when} for name, when in conditions.items()} | {"z": {}, "otherwise": otherwise}
    (folder / "m.yaml").write_text(yaml.safe_dump({**BASE, "profiles": told}))
    loaded = load_manifest(str(folder / "m.yaml"), LoadOptions())
    assert loaded.spec is not None, loaded.diagnostics
    return loaded


def expected(conditions: dict[str, Any], otherwise: str, machine: Machine, unknown: set[str]) -> str | None:
    """Return the name of the profile, or the rule of the finding, as the contract says it."""
    answers = {name: holds(when, machine, unknown) for name, when in conditions.items()}
    true = [name for name, answer in answers.items() if answer]
    if len(true) > 1:
        return "ambiguous-profile"
    if None in answers.values():
        return "undecided-profile"
    if true:
        return true[0]
    return {"base": None, "refuse": "no-profile"}.get(otherwise, otherwise)


@settings(max_examples=effort(50, 5000), deadline=None)
@given(profiles, others, machines, st.sets(st.sampled_from(FIELDS), max_size=2))
def test_a_device_file_decides_as_the_model_does(
    conditions: dict[str, Any], otherwise: str, machine: Machine, unknown: set[str]
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        loaded = load(folder, conditions, otherwise)
        (folder / "d.yaml").write_text(machine.device_file(*unknown))
        host, problems = load_device(str(folder / "d.yaml"))
    assert host is not None, problems
    spec, problem = by_device_file(host)(loaded)
    assert (spec is None) != (problem is None)
    found = problem.rule if problem else spec.profile if spec else None
    assert found == expected(conditions, otherwise, machine, unknown)
    if spec is not None and spec.choice is not None:
        assert spec.choice.reason == ("when" if spec.profile in conditions else "otherwise")


@settings(max_examples=effort(30, 3000), deadline=None)
@given(profiles, others, machines)
def test_this_machine_decides_as_its_device_file(conditions: dict[str, Any], otherwise: str, machine: Machine) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        machine.become(monkeypatch)
        spec, problem = on_this_machine(LoadOptions(), None)(load(Path(name), conditions, otherwise))
    found = problem.rule if problem else spec.profile if spec else None
    assert found == expected(conditions, otherwise, machine, set())
    assert len(machine.tried) == len(set(machine.tried))
    assert "CPU" not in machine.tried


@settings(max_examples=effort(30, 3000), deadline=None)
@given(profiles, st.lists(machines, min_size=1, max_size=30))
def test_what_contradicts_itself_or_is_implied_does_so_on_every_machine(
    conditions: dict[str, Any], some: list[Machine]
) -> None:
    with TemporaryDirectory() as name:
        variants = load(Path(name), conditions).choosable
    assert variants is not None
    boxes = Boxes(variants.whens)
    for when in variants.whens:
        assert not (boxes.is_empty(when) and any(holds(conditions[when.profile], one) for one in some))
    for when, other in implied(variants.whens):
        for one in some:
            assert not holds(conditions[when.profile], one) or holds(conditions[other.profile], one)


@pytest.mark.parametrize(
    ("one", "other", "is_implied"),
    [
        ({"memory": ">= 6GiB"}, {"memory": "> 5GiB"}, True),
        ({"memory": "> 5GiB"}, {"memory": ">= 6GiB"}, False),
        ({"memory": ">= 2GiB, < 4GiB"}, {"not": {"memory": ">= 4GiB"}}, True),
        ({"architecture": "arm64"}, {"architecture": ["x86_64", "aarch64"]}, True),
        ({"provider": ["CUDA", "TRT"]}, {"provider": "cuda"}, True),
        ({"provider": "CUDA"}, {"provider": ["CUDA", "TRT"]}, False),
        ({"labels": {"line": "a"}, "cores": "> 3"}, {"not": {"labels": {"line": "b"}}}, True),
        ({"cores": "> 3"}, {"not": {"labels": {"line": "b"}, "cores": "> 2"}}, False),
        ({"not": {"provider": "CUDA", "cores": "> 2"}}, {"not": {"provider": "CUDA", "cores": "> 5"}}, True),
    ],
)
def test_implications(tmp_path: Path, one: Any, other: Any, *, is_implied: bool) -> None:
    variants = load(tmp_path, {"a": one, "b": other}).choosable
    assert variants is not None
    assert (("a", "b") in [(when.profile, by.profile) for when, by in implied(variants.whens)]) is is_implied


def test_a_provider_is_tried_only_where_cheap_facts_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(opens=("CUDA", "CPU"))
    machine.become(monkeypatch)
    choose = on_this_machine(LoadOptions(), None)
    choose(load(tmp_path, {"a": {"provider": "CUDA", "memory": ">= 9GiB"}}))
    choose(
        load(tmp_path, {"a": {"memory": ">= 3GiB", "not": {"memory": ">= 5GiB", "cores": "> 1"}, "provider": "CUDA"}})
    )
    assert machine.tried == []
    spec, _ = choose(load(tmp_path, {"a": {"provider": "CUDA", "memory": ">= 3GiB", "not": {"provider": "TRT"}}}))
    assert spec is not None
    assert (spec.profile, machine.tried) == ("a", ["CUDA", "Tensorrt"])


@pytest.mark.parametrize(("problem", "profile"), [("no CUDA-capable device is detected", None), (None, "gpu")])
def test_a_package_that_names_cuda_is_no_gpu(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str | None, profile: str | None
) -> None:
    """The trial of `doctor` decides, on the real way to it."""
    asked: list[str] = []

    def ask(_module: str, request: Any, *, seconds: float) -> Answer:  # noqa: ARG001  as in the program
        asked.append(request["name"])
        return Answer([{"provider": request["name"], "device": None, "problem": problem}], 0, late=False, printed="")

    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(probe, "loading_problem", lambda _: None)
    monkeypatch.setattr(provider_trial, "ask", ask)
    loaded = load(tmp_path, {"gpu": {"provider": ["CUDA", "CPU"], "device": {"provider": "cuda", "kind": "GPU"}}})
    spec, found = on_this_machine(LoadOptions(), None)(loaded)
    assert spec is not None, found
    assert (spec.profile, asked) == (profile, ["CUDAExecutionProvider"])
    captured = cli("device", "--label", "line=paint", "--name", "here").out
    assert f"  opens: [{'CUDA, ' if profile else ''}CPU]\n" in captured
    (tmp_path / "d.yaml").write_text(captured)
    host, _ = load_device(str(tmp_path / "d.yaml"))
    assert host is not None
    assert (host.traits.name, host.traits.labels) == ("here", {"line": "paint"})
    spec, _ = by_device_file(host)(loaded)
    assert spec is not None
    assert spec.profile == profile


def test_what_nothing_tells_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a provider that is built in, no device has a name."""
    loaded = load(tmp_path, {"orin": {"device": {"provider": "CUDA", "name": "*Orin*"}}})
    machine = Machine(opens=("CUDA", "CPU"))
    machine.become(monkeypatch)
    spec, problem = on_this_machine(LoadOptions(), None)(loaded)
    assert spec is None
    assert problem is not None
    assert (problem.rule, "This system does not tell" in problem.detail) == ("undecided-profile", True)
    (tmp_path / "d.yaml").write_text(machine.device_file("opens"))
    host, _ = load_device(str(tmp_path / "d.yaml"))
    assert host is not None
    _, problem = by_device_file(host)(loaded)
    assert problem is not None
    assert "Add devices and runtime.opens to its device file" in problem.detail


def step(folder: Path, loaded: Loaded, machine: Machine, *, anew: bool = False) -> tuple[str | None, bool]:
    """Do what an apply does; return the profile that is kept then, and whether it was refused."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        machine.become(monkeypatch)
        spec, problem = on_this_machine(LoadOptions(choose_anew=anew), str(folder))(loaded)
    if spec is not None and spec.choice is not None:
        keep_choice(plan_of(spec.path, spec.choice), spec.choice, folder, "now", anew=anew)
    kept = last_choice(loaded.path, folder)
    return kept.name if kept else None, problem is not None and problem.rule == "profile-changed"


def plan_of(path: str, choice: Choice) -> Plan:
    folder = str(Path(path).parent)
    empty: dict[str, Any] = dict.fromkeys(("sets", "overlays", "roots", "facts", "gates", "steps", "finished"), ())
    return Plan(deployment="m", manifest=path, folder=folder, profile=choice.name, **empty)


changing = st.builds(
    lambda memory, cores, opens: (memory, cores, (*sorted(opens), "CPU")),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sets(st.sampled_from(["CUDA", "Tensorrt"])),
)


@settings(max_examples=effort(25, 2000), deadline=None)
@given(profiles, others, machines, st.lists(changing, min_size=2, max_size=12))
def test_a_device_whose_facts_come_and_go_never_alternates(
    conditions: dict[str, Any], otherwise: str, machine: Machine, history: list[tuple[int, int, tuple[str, ...]]]
) -> None:
    """Each change of profile needs more than the device has ever had, so there are only so many."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        loaded = load(folder, conditions, otherwise)
        most: tuple[int, int, set[str]] = (0, 0, set())
        before: str | None = None
        changes = 0
        for memory, cores, opens in history:
            machine.memory, machine.cores, machine.opens = memory * GIB, cores, opens
            is_first = last_choice(loaded.path, folder) is None
            kept, refused = step(folder, loaded, machine)
            wanted = expected(conditions, otherwise, machine, set())
            gained = memory > most[0] or cores > most[1] or not set(opens) <= most[2]
            most = (max(memory, most[0]), max(cores, most[1]), most[2] | set(opens))
            if refused:
                assert kept == before != wanted
            elif not is_first and kept != before:
                assert gained
                assert kept == wanted
                changes += 1
            before = kept
        assert changes <= 3 + 2 + 2  # steps of memory, of cores, and providers


def test_a_loss_refuses_until_it_is_back_or_chosen(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"gpu": {"provider": "CUDA"}})
    with_gpu, without = Machine(opens=("CUDA", "CPU")), Machine()
    assert step(tmp_path, loaded, without) == (None, False)
    assert step(tmp_path, loaded, with_gpu) == ("gpu", False)  # a driver that was late
    assert step(tmp_path, loaded, without) == ("gpu", True)
    assert step(tmp_path, loaded, with_gpu) == ("gpu", False)
    assert step(tmp_path, loaded, without) == ("gpu", True)
    assert step(tmp_path, loaded, without, anew=True) == (None, False)
    assert step(tmp_path, loaded, without) == (None, False)
    assert step(tmp_path, loaded, with_gpu) == ("gpu", False)


def test_another_text_label_or_name_is_no_loss(tmp_path: Path) -> None:
    by_label = {"paint": {"labels": {"line": "paint"}, "provider": "CUDA"}}
    machine = Machine(labels={"line": "paint"}, opens=("CUDA", "CPU"))
    assert step(tmp_path, load(tmp_path, by_label), machine) == ("paint", False)
    machine.labels = {}
    assert step(tmp_path, load(tmp_path, by_label), machine) == (None, False)
    assert step(tmp_path, load(tmp_path, {"gpu": {"provider": "CUDA"}}), machine) == ("gpu", False)
    machine.opens = ("CPU",)
    renamed = load(tmp_path, {"cuda": {"provider": "CUDA"}})
    assert step(tmp_path, renamed, machine) == (None, False)  # what ran is not in the text any more


def test_the_most_that_was_seen_counts_also_while_the_profile_stays(tmp_path: Path) -> None:
    """Two devices that flap in turn would else make a profile come back."""
    loaded = load(tmp_path, {"one": {"provider": "TensorRT", "not": {"provider": "CUDA"}}})
    machine = Machine()
    for opens, kept, refused in (
        ((), None, False),
        (("Tensorrt",), "one", False),
        (("CUDA", "Tensorrt"), None, False),
        (("CUDA",), None, False),
        ((), None, False),
        (("Tensorrt",), None, True),
    ):
        machine.opens = (*opens, "CPU")
        assert step(tmp_path, loaded, machine) == (kept, refused)


def test_less_memory_or_fewer_cores_are_a_loss(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"large": {"memory": ">= 6GiB"}, "many": {"cores": ">= 6", "memory": "< 6GiB"}})
    machine = Machine(memory=8 * GIB)
    assert step(tmp_path, loaded, machine) == ("large", False)
    machine.memory = 5 * GIB
    assert step(tmp_path, loaded, machine) == ("large", True)
    machine.cores = 8
    assert step(tmp_path, loaded, machine) == ("large", True)
    machine.memory = 7 * GIB
    assert step(tmp_path, loaded, machine) == ("large", False)


def test_a_damaged_note_counts_as_none(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"gpu": {"provider": "CUDA"}})
    step(tmp_path, loaded, Machine(opens=("CUDA", "CPU")))
    (note,) = (tmp_path / "told").iterdir()
    for text in ("", "{", "[]\n", '{"name": 3, "reason": "when", "facts": {}, "since": null}\n'):
        note.write_text(text)
        assert last_choice(loaded.path, tmp_path) is None
    assert step(tmp_path, loaded, Machine()) == (None, False)


TEXT = yaml.safe_dump(BASE)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("profiles: {none: {}}", "value-not-allowed"),
        ("profiles: {base: {when: {cores: '> 1'}}, otherwise: base}", "value-not-allowed"),
        ("profiles: {a: {when: {cores: '> 1'}}}", "missing-key"),
        ("profiles: {a: {}, otherwise: base}", "value-not-allowed"),
        ("profiles: {a: {when: {cores: '> 1'}}, otherwise: aa}", "undefined-profile"),
        ("profiles: {a: {when: {cores: '> 1'}}, otherwise: {jobs: {}}}", "wrong-type"),
        ("profiles: {a: {when: {}}, otherwise: base}", "value-not-allowed"),
        ("profiles: {a: {when: {core: '> 1'}}, otherwise: base}", "unknown-key"),
        ("profiles: {a: {when: {cores: 4}}, otherwise: base}", "wrong-type"),
        ("profiles: {a: {when: {memory: '>= 4'}}, otherwise: base}", "value-not-allowed"),
        ("profiles: {a: {when: {not: {not: {cores: '> 1'}}}}, otherwise: base}", "unknown-key"),
        ("profiles: {a: {name: other}}", "unknown-key"),
        ("profiles: {a: {version: 1}}", "unknown-key"),
        ("profiles: {a: {profiles: {}}}", "unknown-key"),
        ("profiles: {a: {on_end: {command: [x]}}}", "unknown-key"),
    ],
)
def test_what_does_not_stand_in_profiles(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "m.yaml").write_text(f"{TEXT}{text}\n")
    loaded = load_manifest(str(tmp_path / "m.yaml"), LoadOptions())
    assert loaded.spec is None
    assert rule in {one.rule for one in loaded.diagnostics}, loaded.diagnostics


def test_overlays_and_sets_leave_profiles_alone(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"a": {"cores": "> 1"}})
    (tmp_path / "o.yaml").write_text("profiles: {a: {when: {cores: '> 9'}}}\n")
    for options in (
        LoadOptions(overlays=(str(tmp_path / "o.yaml"),)),
        LoadOptions(sets=("profiles.a.when.cores='> 9'",)),
        LoadOptions(sets=("profiles={}",)),
    ):
        refused = load_manifest(loaded.path, options)
        assert {one.rule for one in refused.diagnostics} == {"override-conflict"}
        assert has_errors(refused.diagnostics)


def test_a_profile_that_is_asked_for_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(opens=("CUDA", "CPU"))
    machine.become(monkeypatch)
    path = load(tmp_path, {"gpu": {"provider": "CUDA"}}).path
    for asked, profile, from_environment in (("gpu", "gpu", False), ("none", None, False), ("z", "z", True)):
        options = LoadOptions(profile=asked, from_environment=from_environment)
        spec, problem = on_this_machine(options, None)(load_manifest(path, options))
        assert problem is None
        assert spec is not None
        reason = "environment" if from_environment else "flag"
        assert (spec.profile, spec.asked, spec.choice) == (profile, asked, Choice(name=profile, reason=reason))
    assert machine.tried == []


def test_since_is_when_the_choice_was_first_made(tmp_path: Path) -> None:
    choice = Choice(name="a", reason="when", facts={"memory": 4})
    plan = plan_of(str(tmp_path / "m.yaml"), choice)
    assert keep_choice(plan, choice, tmp_path, "first", anew=False) == "first"
    assert keep_choice(plan, replace(choice, facts={"memory": 5}), tmp_path, "later", anew=False) == "first"
    assert keep_choice(plan, replace(choice, name=None), tmp_path, "last", anew=False) == "last"
