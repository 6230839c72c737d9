"""Every model that the onnx project keeps for its own tests, in one manifest: what loads is planned and gives what plain
ONNX Runtime gives, and what does not load is refused by the plan.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import run_process
from onnx.backend.test.case.node import collect_testcases
from support.effort import effort

from ortdeploy.checks.golden import difference
from ortdeploy.files.onnx_data import KINDS
from ortdeploy.graph.model import kind_of


def write(folder: Path, case: Any) -> None:
    """A model and its data sets, in onnx's layout."""
    folder.mkdir()
    onnx.save(case.model, folder / "model.onnx")
    for number, (inputs, outputs) in enumerate(case.data_sets):
        path = folder / f"test_data_set_{number}"
        path.mkdir()
        for name, values, infos in (
            ("input", inputs, case.model.graph.input),
            ("output", outputs, case.model.graph.output),
        ):
            for index, (value, info) in enumerate(zip(values, infos, strict=False)):
                message = (
                    value if hasattr(value, "SerializeToString") else KINDS[kind_of(info.type)][2](value, info.name)
                )
                (path / f"{name}_{index}.pb").write_bytes(message.SerializeToString())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's own cases overflow on purpose
        for case in collect_testcases(None):
            write(folder / case.name, case)
    return folder


def options() -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.log_severity_level = 4
    return made


def loads(path: Path) -> bool:
    try:
        ort.InferenceSession(path, options())
    except Exception:  # noqa: BLE001  every error of the binding is its own class
        return False
    return True


def manifest(folder: Path, models: list[str]) -> Path:
    lines = [f"  {name}: {{path: {name}/model.onnx, checks: [{name}]}}" for name in models]
    path = folder / "m.yaml"
    path.write_text("\n".join(["version: 1", "models:", *lines, ""]))
    return path


def plain_differences(folder: Path) -> Iterator[str | None]:
    """What plain ONNX Runtime's results differ from the expected ones in; None where they do not."""
    model = onnx.load(folder / "model.onnx")

    def values(kind: str, infos: Any) -> dict[str, Any]:
        paths = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
        read = {}
        for path, info in zip(paths, infos, strict=False):
            message, reader, _ = KINDS[kind_of(info.type)]
            read[info.name] = reader(message.FromString(path.read_bytes()))
        return read

    session = ort.InferenceSession(folder / "model.onnx", options())
    expected = values("output", model.graph.output)
    try:
        found = session.run(list(expected), values("input", model.graph.input))
    except Exception as error:  # noqa: BLE001  every error of the binding is its own class
        yield str(error)
        return
    for have, want in zip(found, expected.values(), strict=True):
        yield difference(np.asarray(have), np.asarray(want), 1e-3, 1e-5)[1]


@pytest.mark.slow
def test_all_models_are_planned_and_checked_in_one_command_each(corpus: Path) -> None:
    names = sorted(path.parent.name for path in corpus.glob("*/model.onnx"))
    assert len(names) > 1500
    names = names[:: effort(3, 1)]
    loadable = {name for name in names if loads(corpus / name / "model.onnx")}
    planned = run_process(["plan", manifest(corpus, names), "--format", "json"], cwd=corpus)
    found = [one for one in planned.json["diagnostics"] if one["severity"] == "error"]
    refused = {one["model"]: one["detail"] for one in found}
    assert not {name: refused[name] for name in loadable & refused.keys()}
    assert not [text for text in refused.values() if "ortdeploy-" in text or str(corpus) in text]
    assert set(names) - loadable == refused.keys()

    checked = run_process(["check", manifest(corpus, sorted(loadable)), "--format", "json"], cwd=corpus)
    results = checked.json["checks"]
    assert {one["model"] for one in results} == loadable
    others = {one["model"]: one["message"] for one in results if one["status"] != "passed"}
    assert len(others) < len(loadable) / 40  # each is a case that ONNX Runtime itself answers otherwise
    assert not {name: text for name, text in others.items() if not any(plain_differences(corpus / name))}
