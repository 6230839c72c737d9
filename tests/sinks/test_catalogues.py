"""Source and sink catalogues agree with the schema."""

import json

from ortdeploy.schemas import schema_text
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.tensors.types import ELEMENT_TYPES

SCHEMA = json.loads(schema_text("deployment"))["$defs"]


def test_input_formats() -> None:
    assert SCHEMA["input"]["properties"]["format"]["enum"] == list(SOURCES) == sorted(SOURCES)


def test_output_formats() -> None:
    assert SCHEMA["output"]["properties"]["format"]["enum"] == list(SINKS) == sorted(SINKS)


def test_element_types() -> None:
    assert SCHEMA["dtype"]["enum"] == list(ELEMENT_TYPES)
