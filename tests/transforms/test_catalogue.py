"""The step catalogues and the schema name the same steps; every step is its own file."""

import json
from pathlib import Path

from ortdeploy.schemas import schema_text
from ortdeploy.transforms import catalogue
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE

SCHEMA = json.loads(schema_text("deployment"))["$defs"]


def steps_of(stage: str) -> set[str]:
    names = {branch["$ref"].rpartition("/")[2] for branch in SCHEMA[stage]["anyOf"]}
    return {SCHEMA[name]["title"] for name in names}


OPERATOR = {"An operator of ONNX"}


def test_schema_and_catalogue_name_the_same_steps() -> None:
    assert steps_of("prepareStep") == set(PREPARE) | OPERATOR
    assert steps_of("postprocessStep") == set(POSTPROCESS) | OPERATOR


def test_every_step_is_a_file() -> None:
    files = {path.stem for path in Path(catalogue.__file__).parent.glob("*.py")}
    files -= {"__init__", "catalogue", "fitting", "packages", "protocol", "sample_rates", "sampling"}
    assert files == {*PREPARE, *POSTPROCESS}


def test_catalogues_are_sorted() -> None:
    assert list(PREPARE) == sorted(PREPARE)
    assert list(POSTPROCESS) == sorted(POSTPROCESS)
