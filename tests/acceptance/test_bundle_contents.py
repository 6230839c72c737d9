"""What goes into a bundle, and what is refused."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Cli
from support.bundles import Signer
from support.models import scale_model
from support.web import running

from ortdeploy.bundles.description import parse
from ortdeploy.bundles.layout import open_bundle
from ortdeploy.files import names

MANIFEST = """\
version: 1
name: demo
models:
  scale: {path: models/scale.onnx, checks: [checks/scale]}
jobs:
  run:
    model: scale
    input: {path: inbox/*.npy}
    output: {path: out}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a model whose weights are in a file of their own, and a golden set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "POLICY", str(tmp_path / "none"))
    model = onnx.load(scale_model(tmp_path / "models/plain.onnx", width=2))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full(2, 2, np.float32), "factor"))
    onnx.save(
        model, tmp_path / "models/scale.onnx", save_as_external_data=True, location="scale.data", size_threshold=0
    )
    (tmp_path / "models/plain.onnx").unlink()
    (tmp_path / "checks/scale").mkdir(parents=True)
    np.savez(tmp_path / "checks/scale/inputs.npz", x=np.ones((1, 2), np.float32))
    np.savez(tmp_path / "checks/scale/outputs.npz", y=np.full((1, 2), 2, np.float32))
    (tmp_path / "inbox").mkdir()
    np.save(tmp_path / "inbox/a.npy", np.ones((1, 2), np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


def files_of(folder: Path, name: str = "demo.tar") -> dict[str, str]:
    """The kinds of files of a bundle."""
    with open_bundle(folder / name) as bundle:
        return {file.name: file.kind for file in bundle.description.files}


def test_all_that_a_manifest_names_is_in_it_and_nothing_else(home: Path, cli: Cli) -> None:
    assert cli("bundle", "m.yaml", "-o", "demo.tar").code == 0
    assert files_of(home) == {
        "checks/scale/inputs.npz": "dataset",
        "checks/scale/outputs.npz": "dataset",
        "m.yaml": "config",
        "models/scale.data": "weight",
        "models/scale.onnx": "weight",
    }


def test_a_model_by_url_is_in_it_and_the_device_asks_no_server(home: Path, cli: Cli) -> None:
    model = (scale_model(home / "models/plain.onnx", width=2)).read_bytes()
    with running() as server:
        server.replies["/plain.onnx"] = (200, {}, model)
        digest = hashlib.sha256(model).hexdigest()
        where = f"{{path: '{server.url('/plain.onnx')}', sha256: {digest}, "
        (home / "m.yaml").write_text(MANIFEST.replace("{path: models/scale.onnx, ", where))
        done = cli("bundle", "m.yaml", "-o", "demo.tar")
        assert done.code == 0, done.err
    assert files_of(home)[f"fetched/{digest}/plain.onnx"] == "weight"
    (home / "device/inbox").mkdir(parents=True)
    np.save(home / "device/inbox/a.npy", np.ones((1, 2), np.float32))
    done = cli("apply", "demo.tar", "--root", "device")
    assert done.code == 0, done.err


def test_a_library_is_in_it_as_code_and_a_policy_must_allow_it(home: Path, cli: Cli) -> None:
    (home / "lib").mkdir()
    (home / "lib/libep.so").write_bytes(b"\x7fELF")
    (home / "m.yaml").write_text(
        MANIFEST.replace("checks: [", "providers: [{provider: Toy, library: lib/libep.so}, CPU], checks: [")
    )
    done = cli("bundle", "m.yaml", "-o", "demo.tar")
    assert done.code == 0, done.err
    assert files_of(home)["lib/libep.so"] == "code"
    assert "brings libraries" in done.out


def test_every_profile_and_overlay_is_in_it(home: Path, cli: Cli) -> None:
    scale_model(home / "models/other.onnx", width=2)
    scale_model(home / "models/third.onnx", width=2)
    profile = "profiles:\n  board: {models: {scale: {path: models/other.onnx}}}\n"
    (home / "m.yaml").write_text(MANIFEST + profile)
    (home / "overlays").mkdir()
    (home / "overlays/o.yaml").write_text("models: {scale: {path: models/third.onnx}}\n")
    done = cli("bundle", "m.yaml", "-o", "demo.tar", "--overlay", "overlays/o.yaml")
    assert done.code == 0, done.err
    assert {"overlays/o.yaml", "models/third.onnx"} <= files_of(home).keys()
    assert cli("bundle", "m.yaml", "-o", "plain.tar").code == 0
    assert {"models/other.onnx", "models/scale.onnx", "models/scale.data"} <= files_of(home, "plain.tar").keys()
    with open_bundle(home / "plain.tar") as bundle:
        assert bundle.description.profiles == ("board",)


def test_a_bundle_with_another_device_in_mind_is_planned_for_it(home: Path, cli: Cli) -> None:
    assert cli("device", "-o", "device.yaml").code == 0
    text = (home / "device.yaml").read_text().replace("name: ", "name: x", 1)
    (home / "device.yaml").write_text(text)
    assert cli("bundle", "m.yaml", "-o", "demo.tar", "--device", "device.yaml").code == 0
    (home / "m.yaml").write_text(MANIFEST.replace("checks: [", "providers: [CUDA], checks: ["))
    refused = cli("bundle", "m.yaml", "-o", "other.tar", "--device", "dev*.yaml")
    assert (refused.code, "unavailable-provider" in refused.err, (home / "other.tar").exists()) == (1, True, False)


def test_show_says_who_needs_a_file_and_whether_it_is_trusted(home: Path, cli: Cli) -> None:
    assert cli("bundle", "m.yaml", "-o", "demo.tar", "--label", "abc").code == 0
    shown = cli("bundle", "show", "demo.tar").out
    assert "demo 1 (abc): 5 files" in shown
    assert [line for line in shown.splitlines() if "scale.onnx" in line and line.endswith("models.scale")]
    assert "nobody's signature is asked for" in shown
    (home / "policy.yaml").write_text("version: 1\ndeployments: {}\n")
    told = json.loads(cli("bundle", "show", "demo.tar", "--policy", "policy.yaml", "--format", "json").out)
    assert (told["trusted"], "allows no deployment" in told["trust"][0]) == (False, True)
    assert cli("apply", "demo.tar").code == 0
    assert "+ is new against the version that runs: 0 bytes" in cli("bundle", "show", "demo.tar").out


def _lfs(home: Path) -> None:
    (home / "checks/scale/outputs.npz").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def _link_out(home: Path) -> None:
    other = home.parent / f"{home.name}-stranger"
    other.mkdir()
    (home / "checks/scale/inputs.npz").rename(other / "inputs.npz")
    (home / "checks/scale/inputs.npz").symlink_to(other / "inputs.npz")


def _text(old: str, new: str) -> Callable[[Path], object]:
    return lambda home: (home / "m.yaml").write_text(MANIFEST.replace(old, new))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_text("name: demo\n", ""), "Write name: at the top"),
        (_text("models/scale.onnx", "models/none.onnx"), "There is no file models/none.onnx"),
        (_text("path: inbox/*.npy", "path: checks/scale/*.npz"), "is an input of a job"),
        (_text("path: out}", "path: checks}"), "lies in an output"),
        (_lfs, "pointer of Git LFS"),
        (_link_out, "link out of the manifest's folder tree"),
        (lambda home: (home / "checks/scale/INPUTS.NPZ").write_bytes(b""), "are one name to some systems"),
        (lambda home: (home / "checks/scale/a:b").write_bytes(b""), "a sign that not every system takes"),
        (_text("jobs:", "on_end: {command: [./tell.sh]}\njobs:"), "would be a program of the bundle"),
        (_text("jobs:", "on_end: {url: 'https://chat.example/hooks/T0/abcdef'}\njobs:"), "is a secret"),
        (lambda home: _text("models/scale.onnx", f"{home}/models/scale.onnx")(home), "no path from the manifest"),
    ],
)  # fmt: skip
def test_what_could_mean_something_else_on_a_device_is_refused(
    home: Path, cli: Cli, change: Callable[[Path], object], why: str
) -> None:
    change(home)
    refused = cli("bundle", "m.yaml", "-o", "demo.tar")
    assert (refused.code, (home / "demo.tar").exists()) == (1, False)
    assert why in refused.words, refused.err


def test_what_no_device_would_read_is_not_made(home: Path, cli: Cli) -> None:
    (home / "deployment.json").write_text("left\nright\n")
    steps = "postprocess: [{argmax: y, as: best}, {labels: best, from: deployment.json, as: word}]"
    _text("    output:", f"    {steps}\n    output:")(home)
    refused = cli("bundle", "m.yaml", "-o", "demo.tar")
    assert '"deployment.json" is there twice. Rename it.' in refused.words
    _text("", "")(home)
    for more in (["-o", "demo.tar"], ["--files", "unsigned"]):
        assert "label is too long" in cli("bundle", "m.yaml", "--label", "x" * 201, *more).err
    assert not {one.name for one in home.iterdir()} & {"demo.tar", "unsigned"}


def test_a_signature_that_is_called_as_a_file_is_none(home: Path, cli: Cli) -> None:
    assert cli("bundle", "m.yaml", "--files", "unsigned").code == 0
    signature = Signer().sign(parse((home / "unsigned/deployment.json").read_bytes()))
    for name in ("deployment.json", "M.yaml", "models"):
        (home / "signatures").mkdir(exist_ok=True)
        (home / "signatures" / name).write_bytes(signature)
        refused = cli("bundle", "m.yaml", "-o", "demo.tar", "--signature", f"signatures/{name}")
        assert (refused.code, "the bundle cannot be made: " in refused.err) == (1, True), refused.err
    assert not (home / "demo.tar").exists()


def test_a_secret_option_is_refused_at_its_place(home: Path, cli: Cli) -> None:
    _text("checks: [", "run: {config: {azure.auth_key: s3cr3t}}, checks: [")(home)
    refused = cli("bundle", "m.yaml", "-o", "demo.tar")
    assert "error[secret-in-bundle]" in refused.err
    assert "s3cr3t" not in refused.err + refused.out


def test_a_bundle_needs_somewhere_to_go_and_one_manifest(home: Path, cli: Cli) -> None:
    (home / "n.yaml").write_text(MANIFEST)
    for words in (["m.yaml"], [".", "-o", "demo.tar"], ["show"], ["m.yaml", "-o", "x", "--version", "0"]):
        assert cli("bundle", *words).code == 64, words
    (home / "mine.tar").write_bytes(b"mine")
    assert cli("bundle", "m.yaml", "-o", "mine.tar").code == 64
    assert (home / "mine.tar").read_bytes() == b"mine"
    os.mkdir("there")  # noqa: PTH102  text
    assert "is not overwritten" in cli("bundle", "m.yaml", "-o", "there").err
    assert "is not overwritten" in cli("bundle", "m.yaml", "--files", "there").err
