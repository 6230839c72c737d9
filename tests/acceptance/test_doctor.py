"""`ortdeploy doctor`: what works on this machine, seen to work."""

from typing import Any

import pytest
from conftest import Cli
from msgspec.structs import replace

from ortdeploy.cli.commands import doctor
from ortdeploy.facts.host import NO_DEVICE, DeviceFacts
from ortdeploy.process.child import Answer
from ortdeploy.providers.catalogue import CPU, PROVIDERS
from ortdeploy.runtime import probe
from ortdeploy.runtime.library import ort
from ortdeploy.sessions import provider_trial
from ortdeploy.versions import missing_of_extras


@pytest.fixture(autouse=True)
def without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at what is built in, whichever plugin packages are installed."""
    monkeypatch.setattr(doctor, "PROVIDERS", ())


def test_the_cpu_is_tried_for_real(cli: Cli) -> None:
    shown = cli("doctor")
    assert shown.code == 0
    assert "works  CPU: opened in" in shown.out
    assert shown.out.splitlines()[0].startswith("ortdeploy ")
    assert len(shown.out.splitlines()) < 40  # one screen


def test_json_has_versions_machine_and_providers(cli: Cli) -> None:
    document = cli("doctor", "--format", "json").json
    assert document["format_version"] == 1
    assert document["machine"]["cores"] >= 1
    (trial,) = [one for one in document["providers"] if one["provider"] == CPU]
    assert (trial["nodes"], trial["problem"]) == (2, None)


def test_each_extra_says_what_it_lacks() -> None:
    found = missing_of_extras(
        [
            "onnx>=1", "pytest; extra == 'dev'", "pillow>=10; extra == 'images'", "pillow>=99999; extra == 'late'",
            "no-such-package>=2; extra == 's3'", "onnx; extra == 's3'", "onnx; extra == 'here'",
            "onnx; (platform_machine == 'pdp11') and extra == 'elsewhere'",
        ]
    )  # fmt: skip
    assert found == {"here": (), "images": (), "late": ("pillow>=99999",), "s3": ("no-such-package>=2",)}


def test_every_extra_for_users_is_shown() -> None:
    assert {"objects", "s3", "adapters", "otel", "nvidia", "ray", "diffusion", "images"} <= missing_of_extras().keys()
    assert not {"all", "dev", "docs", "test"} & missing_of_extras().keys()


def test_quietly_only_what_fails_is_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("doctor", "-q").out == ""
    answer = Answer([{"provider": CPU, "device": None, "problem": "no driver"}], 0, late=False, printed="")
    monkeypatch.setattr(provider_trial, "ask", lambda *_, **__: answer)
    failed = cli("doctor", "-q")
    assert (failed.code, failed.out) == (1, "  fails  CPU\n         no driver\n")


def device(kind: str, provider: str = "WebGpuExecutionProvider") -> DeviceFacts:
    return DeviceFacts(provider=provider, index=0, kind=kind, vendor="v", name="Some GPU", library="lib.so")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer([], -6, late=False, printed="terminate called\n"), "terminate called"),
        (Answer([], -9, late=True, printed=""), "did not end within 60 s"),
        (
            Answer([{"provider": CPU, "device": None, "problem": "no driver"}], 0, late=False, printed=""),
            "no driver",
        ),
    ],
)
def test_a_provider_that_fails_is_told_with_its_reason(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str
) -> None:
    asked: list[Any] = []

    def ask(_module: str, request: Any, *, seconds: float) -> Answer:
        asked.append((request["name"], seconds))
        return answer

    monkeypatch.setattr(provider_trial, "ask", ask)
    shown = cli("doctor")
    assert (shown.code, [name for name, _ in asked]) == (1, [CPU])
    assert "fails  CPU" in shown.out
    assert words in " ".join(shown.out.split())


def test_a_built_in_provider_whose_library_cannot_be_loaded_is_not_tried(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROVIDERS", PROVIDERS)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(probe, "loading_problem", lambda name: "No libcublasLt.so.13." if "CUDA" in name else None)
    shown = cli("doctor")
    assert "No libcublasLt.so.13." in shown.out
    assert "took none of the model's" not in shown.out


def test_devices_of_plugin_packages_are_tried_each() -> None:
    facts = replace(probe.probe_runtime({}), devices=(device("GPU"), device("CPU", "QNNExecutionProvider")))
    offered = list(provider_trial.offered(facts))
    assert [(one.name, one.device.kind if one.device else None, dict(one.options)) for one in offered] == [
        (CPU, None, {}),
        ("WebGpuExecutionProvider", "GPU", {}),
        ("QNNExecutionProvider", "CPU", {"backend_type": "htp"}),
    ]


def test_a_provider_without_a_device_does_not_fail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(
        probe.probe_runtime({}),
        plugin_problems={"WebGpuExecutionProvider": f"Its library lib.so {NO_DEVICE}."},
        available_providers=("CUDAExecutionProvider", CPU),
    )
    monkeypatch.setattr(doctor, "probe_runtime", lambda _: facts)

    def ask(_module: str, request: Any, *, seconds: float) -> Answer:  # noqa: ARG001  as in the program
        problem = "CUDA failure 100: no CUDA-capable device is detected" if "CUDA" in request["name"] else None
        return Answer([{"provider": request["name"], "device": None, "problem": problem}], 0, late=False, printed="")

    monkeypatch.setattr(provider_trial, "ask", ask)
    shown = cli("doctor")
    assert shown.code == 0
    assert "no device  WebGpu" in shown.out
    assert "no device  CUDA" in shown.out
    assert "fails" not in shown.out
    assert cli("doctor", "-q").out == ""
    absent = {one["provider"]: one["absent"] for one in cli("doctor", "--format", "json").json["providers"]}
    assert absent == {"WebGpuExecutionProvider": True, "CUDAExecutionProvider": True, CPU: False}


def test_packages_that_overwrite_each_other_are_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(probe.probe_runtime({}), runtime_packages=("onnxruntime", "onnxruntime-gpu"))
    monkeypatch.setattr(doctor, "probe_runtime", lambda _: facts)
    for flags in ((), ("-q",)):
        shown = cli("doctor", *flags)
        assert shown.code == 1
        assert "fails This environment has onnxruntime, onnxruntime-gpu, which overwrite each other" in " ".join(
            shown.out.split()
        )
    assert "onnxruntime-gpu" in cli("doctor", "--format", "json").json["overwritten"]
