"""Specs from manifest text, without files."""

from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.read_spec import build_spec
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.manifest.spec import Spec

MANIFEST = """\
version: 1
models:
  digits: {path: digits.onnx}
jobs:
  read:
    model: digits
    input: {path: data.npy}
    output: {path: outbox/read}
"""


def make_spec(text: str = MANIFEST, folder: str = "/deploy") -> Spec:
    """Build a spec; the text must be free of problems."""
    document, problems = parse_document(text.encode(), "m.yaml")
    assert document is not None
    assert not problems, problems
    assert not (found := check_document(document)), found
    return build_spec(document, name="m", folder=folder, roots=(), sha256="f" * 64, profile=None, sets=())
