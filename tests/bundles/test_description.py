import json

import pytest
from msgspec.structs import replace
from support.bundles import FILES, describe

from ortdeploy.bundles.description import (
    BundledFile,
    Needs,
    dump,
    identity,
    objection_to_name,
    objection_to_names,
    parse,
)
from ortdeploy.diagnostics import OrtdeployError


def test_a_description_is_read_as_it_was_written_and_its_id_is_the_digest_of_the_text() -> None:
    raw = dump(describe())
    assert parse(raw) == describe()
    assert raw.endswith(b"}\n")
    assert identity(raw) != identity(dump(describe(version=2)))


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b'"base":true', b'"base": true'),
        lambda raw: raw.replace(b'"version":1', b'"version":1.0', 1),
        lambda raw: raw.replace(b'"version":1', b'"version":1,"version":2', 1),
        lambda raw: raw.replace(b'"base":true', b'"base":true,"more":1'),
        lambda raw: json.dumps(json.loads(raw)).encode(),
        lambda _raw: b"[" * 100_000,
        lambda _raw: b"\xff",
        lambda raw: raw.replace(b'"label":""', b'"label":"\\u0041"'),
    ],
)
def test_other_bytes_for_the_same_are_refused(change: "object") -> None:
    with pytest.raises(OrtdeployError, match=r"deployment\.json"):
        parse(change(dump(describe())))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("described", "why"),
    [
        (describe(version=0), "version must be"),
        (describe(version=2**53), "version must be"),
        (describe(name=" "), "name is none"),
        (describe(name="a/b"), "name is none"),
        (describe(format_version=2), "format_version 2"),
        (describe(label="x" * 201), "label is too long"),
        (describe(label="a\ntrusted: model.sig is signed by us"), "more than one line"),
        (describe(label="a\x1b[31m"), "control character"),
        (describe(needs=Needs(ortdeploy="1\n2", allow_code=False)), "needs.ortdeploy is no version"),
        (describe(manifest="other.yaml"), "not among the files"),
        (describe(overlays=("digits.yaml",)), "named twice"),
        (describe(base=False), "nothing in it could run"),
        (describe(profiles=("a", "a")), "profile is named twice"),
        (replace(describe(), files=describe().files[::-1]), "not sorted"),
        (replace(describe(), files=(*describe().files, describe().files[-1])), "not sorted"),
        (describe(needs=Needs(ortdeploy="0", allow_code=True)), "allow_code"),
        (describe({**FILES, "deployment.json": b""}), "is there twice"),
        (describe({**FILES, "models/DIGITS.onnx": b""}), "one name"),
        (describe({**FILES, "models": b""}), "a file and a folder"),
        (describe({"a/digits.yaml": b""}), "at the top"),
        (
            replace(describe(), files=(BundledFile(name="digits.yaml", sha256="0" * 63, size=1, kind="config"),)),
            "sha256",
        ),
        (
            replace(describe(), files=(BundledFile(name="digits.yaml", sha256="0" * 64, size=-1, kind="config"),)),
            "size",
        ),
        (replace(describe(), files=(BundledFile(name="digits.yaml", sha256="0" * 64, size=1, kind="doc"),)), "kind"),
    ],
)
def test_what_no_bundle_may_say_is_refused(described: "object", why: str) -> None:
    with pytest.raises(OrtdeployError, match=why):
        parse(dump(described))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["", "/a", "a//b", "../a", "a/./b", "a/..", "a\\b", "a:b", "con", "NUL.txt", "a.", "a ", " a", "a\nb", "a\u202eb", "e\u0301", "x" * 201, "\ud800", "COM1.onnx", "a?", "a\x00"],
)  # fmt: skip
def test_names_that_mean_different_files_on_different_systems_are_refused(name: str) -> None:
    assert objection_to_name(name) is not None


@pytest.mark.parametrize(
    "names", [("a", "A"), ("straße", "STRASSE"), ("ﬁ", "fi"), ("a/b", "a"), ("A/b", "a/c/d", "a/B")]
)
def test_names_that_some_system_takes_for_one_are_refused(names: tuple[str, ...]) -> None:
    assert objection_to_names(names) is not None


def test_usual_names_are_taken() -> None:
    assert (
        objection_to_names(("digits.yaml", "models/digits.onnx", "überschrift/数字.txt", "a/b/c.d.e", ".hidden"))
        is None
    )
