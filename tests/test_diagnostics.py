"""Messages that say what to write in the manifest."""

import pytest

from ortdeploy.diagnostics import as_key
from ortdeploy.manifest.document import parse_document


@pytest.mark.parametrize(
    "name", ["scores", "a.b/c-1", "387", "1e3", "no", "Null", "x: y", 'a"b', "", "größe", "-", "#"]
)
def test_a_name_is_a_key_for_the_manifest_as_a_message_writes_it(name: str) -> None:
    document, problems = parse_document(f"outputs: {{{as_key(name)}: {{row_axis: 1}}}}".encode(), "m.yaml")
    assert not problems
    assert document is not None
    assert document.data == {"outputs": {name: {"row_axis": 1}}}
    assert as_key("scores") == "scores"
