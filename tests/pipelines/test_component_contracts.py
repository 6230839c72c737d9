"""Components of text-to-image against their contracts: graphs before a run, answers in it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import REPOSITORY
from msgspec.structs import replace
from support.contracts import right, wrong

from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.graph.model import read_model
from ortdeploy.manifest.pipelines import COMPONENTS as NAMES
from ortdeploy.manifest.pipelines import TEXT_TO_IMAGE, PresetSpec
from ortdeploy.presets.component_contracts import ANSWERS, COMPONENTS
from ortdeploy.presets.stable_diffusion import read_diffusion
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import ContractError
from ortdeploy.tensors.types import ELEMENT_TYPES, TensorType

FOLDER = REPOSITORY / "deployments"
PRESET = PresetSpec(
    kind=TEXT_TO_IMAGE,
    folder="models/painter",
    parts={name: f"p.{name}" for name in NAMES},
    steps=2,
    guidance_scale=1.0,
    height=32,
    width=32,
    latents=None,
    adapters={},
)


@pytest.fixture(scope="module")
def models() -> Mapping[str, ModelFacts]:
    return {
        f"p.{name}": read_model(FOLDER / f"models/painter/{name}/model.onnx", f"models/painter/{name}/model.onnx")
        for name in NAMES
    }


def problem(models: Mapping[str, ModelFacts]) -> str:
    found = read_diffusion(FOLDER, PRESET, models, {}).problem
    return found.detail if found else ""


def test_every_component_has_a_contract() -> None:
    assert set(COMPONENTS) == set(ANSWERS) == set(NAMES)


def test_the_example_keeps_its_contracts(models: Mapping[str, ModelFacts]) -> None:
    assert problem(models) == ""


def changed(facts: ModelFacts, name: str, tensor: TensorType) -> ModelFacts:
    """Return a component one of whose inputs, or whose output, is of another type."""

    def one(value: ValueFacts) -> ValueFacts:
        return replace(value, tensor=tensor) if value.name == name else value

    outputs = facts.outputs if name else (replace(facts.outputs[0], tensor=tensor), *facts.outputs[1:])
    return replace(facts, inputs=tuple(map(one, facts.inputs)), outputs=outputs)


@pytest.mark.parametrize("part", NAMES)
def test_a_graph_that_does_not_keep_the_contract_is_refused(part: str, models: Mapping[str, ModelFacts]) -> None:
    contract, facts = COMPONENTS[part], models[f"p.{part}"]
    for parameter in (*contract.inputs, None):
        of = next((value for value in facts.inputs if parameter and value.name == parameter.name), facts.outputs[0])
        name = parameter.name if parameter else ""
        takes = parameter or contract.outputs[0]
        ranks = [rank for rank in range(7) if not any(form.has_rank(rank) for form in takes.forms)]
        wrong_types = [of.tensor.with_shape((None,) * rank) for rank in ranks]
        allowed = contract.constraint(takes).types
        wrong_types += [replace(of.tensor, dtype=dtype) for dtype in ELEMENT_TYPES if dtype not in allowed]
        for tensor in wrong_types:
            text = problem({**models, f"p.{part}": changed(facts, name, tensor)})
            assert f"{part} " in text, (name, tensor)
            assert "it takes" in text, (name, tensor)


def test_channels_of_latents_are_four(models: Mapping[str, ModelFacts]) -> None:
    facts = models["p.unet"]
    sample = next(value.tensor for value in facts.inputs if value.name == "sample")
    text = problem({**models, "p.unet": changed(facts, "sample", sample.with_shape((None, 9, 4, 4)))})
    assert "unet is not what text-to-image feeds: it takes sample [rows, 4, latent_height, latent_width]" in text


@pytest.mark.parametrize("part", NAMES)
def test_wrong_answers_are_refused(part: str, tmp_path: Path) -> None:
    contract = ANSWERS[part]
    sizes = {"latents": [4, 4], "image": [32, 32]}
    bound = replace(contract, attributes=tuple(replace(one, default=sizes[one.name]) for one in contract.attributes))
    for case in right(bound, tmp_path):
        check = ContractCheck(contract, sizes, {name: TensorType() for name in case.arrays})
        check(case.arrays)
        for bad in wrong(contract, case):
            with pytest.raises(ContractError):
                check(bad.arrays)
        other_rows = {**case.arrays, contract.inputs[-1].name: case.arrays[contract.inputs[-1].name][:1]}
        with pytest.raises(ContractError, match="rows is 2"):
            check(other_rows)
