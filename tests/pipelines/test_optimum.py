"""`preset: diffusion`: pipelines of optimum-onnx over sessions that ortdeploy opens; needs the extra diffusion to run."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, Cli, run_process
from support.changed_files import Change, applied, changing

EXAMPLES = REPOSITORY / "deployments"

needs_optimum = pytest.mark.skipif(
    not (importlib.util.find_spec("optimum") and importlib.util.find_spec("torch")),
    reason="optimum-onnx and PyTorch are not installed",
)

MANIFEST = """\
version: 1
name: optimum
pipelines:
  native: {preset: text-to-image, from: models/painter, steps: 6, guidance_scale: 5.0, height: 32, width: 32,
    latents: noise.npy}
  handed:
    preset: diffusion
    from: models/painter
    providers: [CPU]
    components:
      text_encoder: {}
      unet: {session: {intra_op_num_threads: 1}, providers: [{provider: CPU}]}
      vae_decoder: {cache: true}
      vae_encoder: {}
    steps: 6
    guidance_scale: 5.0
    height: 32
    width: 32
    latents: noise.npy
jobs:
  own:
    pipeline: native
    input: {path: prompts.csv, key: [prompt]}
    batch: {size: 3}
    output: {path: own, format: npz}
  theirs:
    pipeline: handed
    input: {path: prompts.csv, key: [prompt]}
    batch: {size: 3}
    output: {path: theirs, format: npz}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pipeline in the layout of optimum-onnx."""
    folder = tmp_path_factory.mktemp("made")
    script = EXAMPLES / "make_tiny_painter.py"
    command = [sys.executable, "-W", "ignore", str(script), "--layout", "optimum", "--out", str(folder / "painter")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder / "painter"


@pytest.fixture
def painter(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "models/painter")
    shutil.copy(EXAMPLES / "prompts.csv", tmp_path / "prompts.csv")
    np.save(tmp_path / "noise.npy", np.random.RandomState(5).randn(4, 4, 4).astype(np.float32))
    (tmp_path / "m.yaml").write_text(MANIFEST)
    return tmp_path


def images(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(part)["image"] for part in sorted(folder.glob("part-*"))])


@needs_optimum
def test_images_of_optimum_are_those_of_our_own_loop(painter: Path) -> None:
    done = run_process(["apply", "m.yaml"], cwd=painter)
    assert done.code == 0, done.out + done.err
    own, theirs = images(painter / "own"), images(painter / "theirs")
    assert own.shape == theirs.shape == (4, 32, 32, 3)
    assert np.abs(own.astype(int) - theirs).max() <= 1
    report = json.loads((painter / "theirs/_run.json").read_text())
    parts = {"handed.text_encoder", "handed.unet", "handed.vae_decoder", "handed.vae_encoder"}
    assert set(report["components"]) == parts
    assert all(set(part["placement"]) == {"CPUExecutionProvider"} for part in report["components"].values())
    assert "Warning" not in done.err
    assert "1 finished already" in run_process(["plan", "m.yaml", "--job", "own"], cwd=painter).out


@needs_optimum
def test_an_image_goes_in_and_another_comes_out(painter: Path) -> None:
    pytest.importorskip("PIL")
    from PIL import Image  # noqa: PLC0415  an extra

    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(painter / f"{name}.png")
    np.savez(
        painter / "rows.npz",
        prompt=np.array(["a red house", "the sea"]),
        image=np.stack([np.asarray(Image.open(painter / f"{name}.png")) for name in ("a", "b")]),
        mask_image=np.zeros((2, 32, 32, 1), np.uint8),
    )
    head, _, _ = MANIFEST.partition("jobs:")
    text = head.replace(
        "    preset: diffusion\n", "    preset: diffusion\n    task: {task}\n    arguments: {{strength: 0.5}}\n", 1
    )
    text = (
        text.replace("    latents: noise.npy\n", "")
        .replace("latents: noise.npy}", "latents: noise.npy}}")
        .replace("native: {", "native: {{")
    )
    for sign in ("text_encoder: {}", "vae_encoder: {}", "vae_decoder: {cache: true}"):
        text = text.replace(sign, sign.replace("{", "{{").replace("}", "}}"))
    text = text.replace(
        "{session: {intra_op_num_threads: 1}, providers: [{provider: CPU}]}",
        "{{session: {{intra_op_num_threads: 1}}, providers: [{{provider: CPU}}]}}",
    )
    for task in ("image-to-image", "inpainting"):
        job = f"jobs:\n  run: {{pipeline: handed, input: {{path: rows.npz}}, output: {{path: {task}, format: npz}}}}\n"
        (painter / "m.yaml").write_text(text.format(task=task) + job)
        done = run_process(["apply", "m.yaml"], cwd=painter)
        assert done.code == 0, done.out + done.err
        assert images(painter / task).shape == (2, 32, 32, 3)


@needs_optimum
@pytest.mark.parametrize("name", ["scheduler/scheduler_config.json", "tokenizer/vocab.json"])
def test_what_optimum_opens_is_what_was_planned_with(painter: Path, name: str) -> None:
    """The file is another when optimum-onnx opens the folder; what was hashed is kept, and is what it gets."""
    other = painter / "other/models/painter" / name
    other.parent.mkdir(parents=True)
    document = json.loads((painter / "models/painter" / name).read_text())
    numbers = dict(zip(document, reversed(list(document.values())), strict=True))
    other.write_text(json.dumps({**document, "beta_end": 0.02} if "beta_end" in document else numbers))
    assert applied(painter, "--job", "theirs")[0] == 0
    planned = images(painter / "theirs")
    shutil.rmtree(painter / "theirs")
    with changing(painter, Change(f"models/painter/{name}", "renamed over", "planned")) as made:
        code, said = applied(painter, "--job", "theirs")
    assert made
    assert code == 0, said
    np.testing.assert_array_equal(images(painter / "theirs"), planned)
    code, said = applied(painter, "--job", "theirs", "--new-run")
    assert code == 0, said
    assert np.abs(images(painter / "theirs").astype(int) - planned).max() > 0, "the other file makes other images"


@needs_optimum
def test_an_argument_that_the_pipeline_has_not_ends_the_job(painter: Path) -> None:
    (painter / "m.yaml").write_text(
        MANIFEST.replace("    preset: diffusion\n", "    preset: diffusion\n    arguments: {guidance_rescal: 3}\n")
    )
    done = run_process(["apply", "m.yaml", "--job", "theirs"], cwd=painter)
    assert done.code == 1
    assert 'takes no argument "guidance_rescal". Did you mean "guidance_rescale"?' in done.out
    assert "Traceback" not in done.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as optimum-onnx writes it, as far as a plan looks at it."""
    shutil.copytree(EXAMPLES / "models/painter", tmp_path / "models/painter")
    shutil.copy(EXAMPLES / "prompts.csv", tmp_path / "prompts.csv")
    np.save(tmp_path / "noise.npy", np.zeros((4, 4, 4), np.float32))
    for part in ("text_encoder", "unet", "vae_decoder"):
        (tmp_path / "models/painter" / part / "config.json").write_text("{}")
    (tmp_path / "models/painter/model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    (tmp_path / "m.yaml").write_text(MANIFEST.replace("      vae_encoder: {}\n", ""))
    return tmp_path


def refusal(folder: Path, cli: Cli) -> str:
    planned = cli("plan", folder / "m.yaml", "--job", "theirs")
    return " ".join((planned.out + planned.err).split())


def test_without_the_package_the_plan_names_the_extra(folder: Path, cli: Cli) -> None:
    said = refusal(folder, cli)
    if importlib.util.find_spec("optimum"):
        assert "Plan: 3 sessions to open" in said
    else:
        assert "[missing-package]" in said
        assert 'pip install "ortdeploy[diffusion]"' in said
        assert "unusable-preset" not in said


@pytest.mark.quick("config-unet/config.json is missing")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("index", "model_index.json cannot be read"),
        ("text", "model_index.json is no JSON text"),
        ("class", "model_index.json names no _class_name"),
        ("config", "unet/config.json is missing"),
        ("more", "models/painter has safety, and the manifest does not say so. Add components: {safety: {}}."),
    ],
)
def test_a_folder_that_optimum_could_not_open_is_refused(folder: Path, cli: Cli, change: str, words: str) -> None:
    painter = folder / "models/painter"
    match change:
        case "index":
            (painter / "model_index.json").unlink()
        case "text":
            (painter / "model_index.json").write_text("{")
        case "class":
            (painter / "model_index.json").write_text("[]")
        case "config":
            (painter / "unet/config.json").unlink()
        case _:
            shutil.copytree(painter / "unet", painter / "safety")
    said = refusal(folder, cli)
    assert "[unusable-preset]" in said
    assert words in said


def test_components_have_the_names_that_optimum_knows(folder: Path, cli: Cli) -> None:
    (folder / "m.yaml").write_text((folder / "m.yaml").read_text().replace("      unet:", "      unett:"))
    assert 'has no component "unett". Did you mean "unet"?' in refusal(folder, cli)


def test_every_component_of_diffusion_is_named(folder: Path, cli: Cli) -> None:
    text = (folder / "m.yaml").read_text()
    (folder / "m.yaml").write_text(text.replace("      text_encoder: {}\n", ""))
    assert "Add components: {text_encoder: {}}" in refusal(folder, cli)
