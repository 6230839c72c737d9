"""Profiles and --set."""

from pathlib import Path

import pytest
from support.specs import MANIFEST

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.manifest.loader import Loaded, LoadOptions, load_manifest
from ortdeploy.manifest.spec import Spec

PROFILES = """\
profiles:
  lab:
    jobs: {read: {batch: {size: 4}}}
    models: {digits: {path: lab.onnx}}
  wrong:
    jobs: {read: {batch: {size: many}}}
"""


def load(folder: Path, text: str, *, profile: str | None = None, sets: tuple[str, ...] = ()) -> Loaded:
    path = folder / "m.yaml"
    path.write_text(text, encoding="utf-8")
    return load_manifest(str(path), LoadOptions(profile=profile, sets=sets))


def spec(loaded: Loaded) -> Spec:
    assert loaded.spec is not None, loaded.diagnostics
    return loaded.spec


def only(loaded: Loaded) -> Diagnostic:
    assert len(loaded.diagnostics) == 1, loaded.diagnostics
    return loaded.diagnostics[0]


def test_a_profile_is_merged_over_the_manifest(tmp_path: Path) -> None:
    text = MANIFEST + PROFILES.partition("  wrong")[0]
    assert spec(load(tmp_path, text)).jobs[0].batch.size is None
    loaded = spec(load(tmp_path, text, profile="lab"))
    assert loaded.jobs[0].batch.size == 4
    assert loaded.models[0].path == "lab.onnx"
    assert loaded.jobs[0].model == "digits"


def test_a_profile_that_is_not_there_offers_the_nearest(tmp_path: Path) -> None:
    found = only(load(tmp_path, MANIFEST + PROFILES.partition("  wrong")[0], profile="lba"))
    assert found.rule == "undefined-profile"
    assert '"lab"' in found.detail


def test_every_profile_is_checked_where_it_is_written(tmp_path: Path) -> None:
    found = only(load(tmp_path, MANIFEST + PROFILES))
    assert (found.rule, found.span.line) == ("wrong-type", 14)


def test_a_set_value_is_read_as_yaml(tmp_path: Path) -> None:
    sets = ("jobs.read.batch.size=16", "models.digits.providers=[CPU]", "name=other", "jobs.read.input.key=[row]")
    loaded = spec(load(tmp_path, MANIFEST, sets=sets))
    assert loaded.name == "other"
    assert loaded.jobs[0].batch.size == 16
    assert loaded.jobs[0].input.key == ("row",)
    assert [entry.name for entry in loaded.models[0].sessions[0].chain] == ["CPU"]


def test_a_set_reaches_list_items_and_keys_with_dots(tmp_path: Path) -> None:
    text = MANIFEST + "    prepare: {image: [{scale: 2}, {cast: float32}]}\n"
    text = text.replace(
        "{path: digits.onnx}", "{path: digits.onnx, session: {config: {session.dynamic_block_base: 1}}}"
    )
    sets = ("jobs.read.prepare.image.1.cast=float16", "models.digits.session.config.session.dynamic_block_base=2")
    loaded = spec(load(tmp_path, text, sets=sets))
    assert loaded.jobs[0].prepare["image"][1].options == {"cast": "float16"}
    assert loaded.models[0].session["config"] == {"session.dynamic_block_base": 2}


@pytest.mark.parametrize(
    ("text", "rule", "words"),
    [
        ("jobs.read.batch.size=many", "wrong-type", "jobs.read.batch.size"),
        ("jobs.read.bach.size=4", "unknown-key", '"batch"'),
        ("version.x=1", "override-conflict", "single value"),
        ("jobs..x=1", "override-conflict", "single dots"),
        ("name=[", "yaml-syntax", "flow node"),
    ],
)
def test_a_wrong_set_is_a_diagnostic_at_the_set(tmp_path: Path, text: str, rule: str, words: str) -> None:
    found = only(load(tmp_path, MANIFEST, sets=(text,)))
    assert found.rule == rule
    assert words in found.detail
    assert found.span.path == f"--set {text.partition('=')[0]}"


def test_a_list_index_that_is_not_there_is_a_diagnostic(tmp_path: Path) -> None:
    text = MANIFEST + "    prepare: {image: [{scale: 2}]}\n"
    found = only(load(tmp_path, text, sets=("jobs.read.prepare.image.5.scale=1",)))
    assert found.rule == "override-conflict"
    assert "a list of 1 items" in found.detail


@pytest.mark.parametrize("value", ["0" * 64, "1" * 64, "010", "1e400", "yes", "null", "2024-01-01"])
def test_a_set_value_is_text_where_the_manifest_takes_text_alone(tmp_path: Path, value: str) -> None:
    loaded = load(tmp_path, MANIFEST, sets=(f"name={value}",))
    assert spec(loaded).name == value


def test_a_digest_of_digits_can_be_set(tmp_path: Path) -> None:
    loaded = load(tmp_path, MANIFEST, sets=(f"models.digits.sha256={'0' * 64}",))
    assert spec(loaded).models[0].sha256 == "0" * 64


def test_a_set_value_stays_a_number_where_numbers_fit(tmp_path: Path) -> None:
    assert spec(load(tmp_path, MANIFEST, sets=("jobs.read.batch.size=4",))).jobs[0].batch.size == 4
    found = load(tmp_path, MANIFEST, sets=("jobs.read.batch.size=010",)).diagnostics
    assert found[0].rule == "ambiguous-scalar"


def test_a_set_value_that_is_no_unicode_is_a_diagnostic(tmp_path: Path) -> None:
    assert only(load(tmp_path, MANIFEST, sets=("name=\udc80",))).rule == "not-utf8"
