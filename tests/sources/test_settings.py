"""Keys of one format: its module has them, and the schema; plans say them as they always did."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.facts import make_facts
from support.specs import MANIFEST, make_spec

from ortdeploy.deployment.resolve import resolve
from ortdeploy.facts.data import DeclaredInput
from ortdeploy.feeds.row_sources import wanted_columns
from ortdeploy.manifest.read_spec import OF_ANY_FORMAT
from ortdeploy.manifest.spec import InputSpec
from ortdeploy.plan.plan_file import ALWAYS_SAID, decode, encode, plan_digest
from ortdeploy.plan.steps import JobInput, Plan, RunJob
from ortdeploy.planning.make.plan import make_plan
from ortdeploy.schemas import schema_text
from ortdeploy.sources import image
from ortdeploy.sources.catalogue import SOURCES
from ortdeploy.sources.input_probe import probe_input
from ortdeploy.sources.protocol import Setting

SETTINGS = {one.name: one for form in SOURCES for one in SOURCES[form].SETTINGS}


def planned(keys: str = "") -> Plan:
    """A plan of a job that reads pictures, with these keys in its input."""
    spec = make_spec(MANIFEST.replace("{path: data.npy}", f"{{path: a.png{keys}}}"))
    columns = {"pixels": "uint8[rows,1,8,8]"}
    return make_plan(resolve(spec, make_facts(spec, {"inputs": {"read": {"format": "image", "columns": columns}}})))


def job_of(plan: Plan) -> RunJob:
    return next(step for step in plan.steps if isinstance(step, RunJob))


def test_each_key_of_an_input_is_for_any_format_or_a_setting_of_some() -> None:
    keys = json.loads(schema_text("deployment"))["$defs"]["input"]["properties"]
    assert SETTINGS.keys() | OF_ANY_FORMAT == keys.keys()
    assert not SETTINGS.keys() & (OF_ANY_FORMAT | {*JobInput.__struct_fields__, *InputSpec.__struct_fields__})
    assert {name: SETTINGS[name].default for name in ALWAYS_SAID} == ALWAYS_SAID
    for name, one in SETTINGS.items():
        assert keys[name].get("default", one.default) in {one.default, "none"}, name


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", {}),
        (", exif: true", {}),
        (", exif: false", {"exif": False}),
        (", background: none", {"background": "none"}),
        (", exif: false, background: white", {"exif": False, "background": "white"}),
    ],
)
def test_a_plan_says_settings_where_it_always_did(keys: str, said: dict[str, Any]) -> None:
    source = job_of(planned(keys)).input
    text = json.loads(json.dumps(encode(source)))
    assert text.keys() & SETTINGS.keys() == {"rate", "exif", *said}
    assert {name: text[name] for name in ("rate", "exif", *said)} == {"rate": None, "exif": True} | said
    assert source.settings == said
    assert decode(JobInput, text) == source
    assert wanted_columns(job_of(planned(keys))).settings == said


def test_results_depend_on_the_values_that_change_them() -> None:
    identities = [dict(job_of(planned(keys)).identity) for keys in ("", ", exif: true", ", background: none")]
    assert identities[0] == identities[1] == identities[2]
    assert plan_digest(planned(), "read") == plan_digest(planned(", exif: true"), "read")
    others = {job_of(planned(keys)).identity["prepare"] for keys in ("", ", exif: false", ", background: black")}
    assert len(others) == 3


def test_a_new_key_of_a_format_needs_its_module_and_the_schema_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Setting(name="gamma", type=float, default=1.0, changing=(2.0,), files="pictures", trait="gamma")
    monkeypatch.setattr(image, "SETTINGS", (*image.SETTINGS, new))
    monkeypatch.setattr("support.specs.check_document", lambda _document: ())
    job = job_of(planned(", gamma: 2.0"))
    assert new.of(wanted_columns(job).settings) == 2.0
    assert encode(job.input)["gamma"] == 2.0
    assert decode(JobInput, json.loads(json.dumps(encode(job.input)))) == job.input
    assert job.identity != job_of(planned()).identity
    assert "gamma" not in encode(job_of(planned(", gamma: 1.0")).input)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("a.npy", {"rate": 8000}, "rate: is for recordings (audio, wav); npy files have no sample rate. Remove it."),
        ("a.npy", {"exif": True}, "exif: is for pictures (image); npy files have no EXIF orientation. Remove it."),
        ("a.wav", {"background": "none"}, "background: is for pictures (image); wav files have no transparency. Remove it."),
    ],
)  # fmt: skip
def test_a_key_of_another_format_is_refused(tmp_path: Path, name: str, settings: dict[str, Any], words: str) -> None:
    (tmp_path / name).touch()
    declared = DeclaredInput(folder=str(tmp_path), patterns=(name,), settings=settings)
    problem = probe_input(declared, frozenset()).problem
    assert problem is not None
    assert problem.detail == words
