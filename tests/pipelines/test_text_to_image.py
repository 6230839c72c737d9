"""Images from text: against what diffusers' own loop made of the same weights, in both layouts, on two providers."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import REPOSITORY, Cli, run_process
from msgspec.structs import replace
from onnx import TensorProto, helper
from PIL import Image
from support.models import make_adapter
from support.plugins import needs_openvino_device

from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.pipelines.compose import compose
from ortdeploy.pipelines.text_to_image import TextToImageSession
from ortdeploy.plan.steps import OpenSession, Plan, RunJob
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.presets.schedulers import read_scheduler
from ortdeploy.runtime.session import OrtRuntime
from ortdeploy.sessions.opening import ModelOpener, OpenedModel
from ortdeploy.state import memo

REFERENCE = REPOSITORY / "tests/data/painter.npz"
SESSION = "{intra_op_num_threads: 1, graph_optimization_level: disable}"
NAMES = ["ddim", "pndm", "euler", "lms", "heun", "dpm", "dpm_karras", "unipc"]


def copy_painter(folder: Path) -> Path:
    """Copy the example."""
    shutil.copytree(REPOSITORY / "deployments/models/painter", folder / "models/painter")
    for name in ("painter.yaml", "prompts.csv"):
        shutil.copy(REPOSITORY / "deployments" / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def known_graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a first plan reads in the example's graphs, so that not every test reads them again."""
    folder = copy_painter(tmp_path_factory.mktemp("known"))
    (folder / ".ortdeploy").mkdir()
    plan_of(folder)
    return folder / ".ortdeploy" / memo.FOLDER


@pytest.fixture
def painter(tmp_path: Path, known_graphs: Path) -> Path:
    """The example in few steps, and with a graph that ONNX Runtime opens in a third of the time."""
    shutil.copytree(known_graphs, tmp_path / ".ortdeploy" / memo.FOLDER)
    copy_painter(tmp_path)
    change(tmp_path, "steps: 6", "steps: 2")
    change(tmp_path, "session: {intra_op_num_threads: 1}", f"session: {SESSION}")
    return tmp_path


def change(folder: Path, old: str, new: str) -> None:
    """Change the example's manifest."""
    manifest = folder / "painter.yaml"
    manifest.write_text(manifest.read_text().replace(old, new))


def as_optimum(folder: Path) -> None:
    """Bring the folder into optimum-onnx's layout: int64 ids, a timestep of rank 0."""
    for part, name, inside in (("text_encoder", "input_ids", "ids"), ("unet", "timestep", "time")):
        path = folder / f"models/painter/{part}/model.onnx"
        model = onnx.load(str(path))
        for node in model.graph.node:
            node.input[:] = [inside if one == name else one for one in node.input]
        place = next(index for index, one in enumerate(model.graph.input) if one.name == name)
        if part == "unet":
            node = helper.make_node("Unsqueeze", [name, "first_axis"], [inside])
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], dtype=np.int64), "first_axis"))
            kind = helper.make_tensor_value_info(name, TensorProto.FLOAT, [])
        else:
            node = helper.make_node("Cast", [name], [inside], to=TensorProto.INT32)
            kind = helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 77])
        model.graph.node.insert(0, node)
        model.graph.input[place].CopyFrom(kind)
        onnx.save(model, str(path))


def plan_of(folder: Path) -> Plan:
    planned = plan_manifests([str(folder / "painter.yaml")], LoadOptions(), state_dir=None)
    (plan,) = planned.plans
    return plan


@dataclass(frozen=True, slots=True)
class Opened:
    """A plan of the example, and the sessions of its models."""

    plan: Plan
    models: dict[str, OpenedModel]


@pytest.fixture(scope="module", params=["classic", "optimum"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, known_graphs: Path) -> Opened:
    """The example in a layout, opened once for all schedulers."""
    folder = copy_painter(tmp_path_factory.mktemp("opened"))
    shutil.copytree(known_graphs, folder / ".ortdeploy" / memo.FOLDER)
    change(folder, "session: {intra_op_num_threads: 1}", f"session: {SESSION}")
    if request.param == "optimum":
        as_optimum(folder)
    plan = plan_of(folder)
    opener = ModelOpener(runtime=OrtRuntime(), on_native_call=lambda _: None, native_text=lambda: "")
    openings = [step for step in plan.steps if isinstance(step, OpenSession)]
    return Opened(plan, {one.session: opener.open_model(one, one.candidates) for one in openings})


def session_of(opened: Opened, scheduler: dict[str, Any], latents: Path) -> TextToImageSession:
    """Return the plan's session, with another scheduler and starting noise."""
    (job,) = [step for step in opened.plan.steps if isinstance(step, RunJob)]
    settings, problem = read_scheduler(scheduler)
    assert problem is None
    assert job.pipeline is not None
    assert job.pipeline.preset is not None
    preset = replace(job.pipeline.preset, scheduler=settings, latents=str(latents))
    session = compose(replace(job.pipeline, preset=preset), opened.models).sessions[0].session
    assert isinstance(session, TextToImageSession)
    return session


@pytest.mark.quick(*(f"classic-{name}" for name in NAMES))
@pytest.mark.parametrize("name", NAMES)
def test_images_are_those_of_diffusers(opened: Opened, tmp_path: Path, name: str) -> None:
    with np.load(REFERENCE) as known:
        np.save(tmp_path / "latents.npy", known["latents"])
        config = json.loads(str(known[f"{name}_config"]))
        session = session_of(opened, config, tmp_path / "latents.npy")
        image = session.paint([str(known["prompt"])], [str(known["negative"])], [0])
        np.testing.assert_allclose(image, known[f"{name}_image"], atol=1e-4)
        others = [known[f"{other}_image"] for other in NAMES if other != name]
    assert min(float(np.abs(image - other).max()) for other in others) > 1e-3, "the tolerance tells them apart"


def images(folder: Path) -> np.ndarray:
    parts = sorted((folder / "outbox/paintings").glob("part-*"))
    return np.concatenate([np.load(part)["image"] for part in parts])


@pytest.mark.slow
def test_rows_are_prompts_and_equal_rows_give_equal_images(painter: Path, cli: Cli) -> None:
    assert cli("apply", painter / "painter.yaml").code == 0
    first = images(painter)
    assert first.shape == (4, 32, 32, 3)
    assert first.dtype == np.uint8
    assert np.abs(first[1].astype(int) - first[2]).max() > 0, "another seed is another image"
    text = (painter / "painter.yaml").read_text().replace("batch: {size: 2}", "batch: {size: 3}")
    (painter / "painter.yaml").write_text(text)
    assert cli("apply", painter / "painter.yaml", "--new-run").code == 0
    assert np.abs(images(painter).astype(int) - first).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer/vocab.json", "scheduler/scheduler_config.json"])
def test_a_folder_with_a_link_out_of_the_tree_is_refused(painter: Path, cli: Cli, name: str) -> None:
    (painter / "site").mkdir()
    for one in ("models", "painter.yaml", "prompts.csv"):
        (painter / one).rename(painter / "site" / one)
    path = painter / "site/models/painter" / name
    path.rename(painter / path.name)
    path.symlink_to(painter / path.name)
    planned = cli("plan", painter / "site/painter.yaml")
    assert planned.code == 1
    assert "[link-out-of-tree]" in planned.out
    assert f"models/painter/{name} is a link" in planned.words
    assert cli("plan", painter / "site/painter.yaml", "--allow-root", painter).code == 0


@needs_openvino_device
def test_options_reach_the_component_and_no_other(painter: Path) -> None:
    chain = "[{provider: OpenVINO, options: {load_config: {CPU: {INFERENCE_PRECISION_HINT: f32, NUM_STREAMS: 1}}}}]"
    text = (painter / "painter.yaml").read_text()
    (painter / "painter.yaml").write_text(text.replace(f"session: {SESSION}", f"providers: {chain}"))
    done = run_process(["apply", "painter.yaml"], cwd=painter)
    assert done.code == 0, done.out + done.err
    report = json.loads((painter / "outbox/paintings/_run.json").read_text())
    parts = report["components"]
    assert set(parts["paint.unet"]["placement"]) == {"OpenVINOExecutionProvider"}
    assert (
        set(parts["paint.text_encoder"]["placement"])
        == set(parts["paint.vae_decoder"]["placement"])
        == {"CPUExecutionProvider"}
    )
    (provider,) = parts["paint.unet"]["providers"]
    wanted = {"CPU": {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}}
    assert json.loads(provider["options"]["load_config"]) == wanted
    on_openvino = images(painter)
    (painter / "painter.yaml").write_text(text)
    assert run_process(["apply", "painter.yaml", "--new-run"], cwd=painter).code == 0
    assert np.abs(images(painter).astype(int) - on_openvino).max() <= 1


@pytest.mark.slow
def test_an_answer_of_fewer_rows_is_not_spread_over_the_latents(painter: Path, cli: Cli) -> None:
    path = painter / "models/painter/unet/model.onnx"
    model = onnx.load(str(path))
    name = model.graph.output[0].name
    last = next(node for node in model.graph.node if name in node.output)
    last.output[list(last.output).index(name)] = "before"
    model.graph.node.append(helper.make_node("ReduceMean", ["before"], [name], axes=[0], keepdims=1))
    onnx.save(model, str(path))
    text = (painter / "painter.yaml").read_text() + "    errors: {max_failed: 4}\n"
    (painter / "painter.yaml").write_text(text)
    cli("apply", painter / "painter.yaml")
    failed = [json.loads(line) for line in (painter / "outbox/paintings/_failed.jsonl").read_text().splitlines()]
    assert len(failed) == 4
    assert "cannot use what unet gives" in failed[0]["message"]
    assert "rows is 2 in sample and 1 in noise" in failed[0]["message"]


def refusal(folder: Path, cli: Cli) -> str:
    refused = cli("plan", folder / "painter.yaml")
    assert refused.code == 1
    return " ".join((refused.out + refused.err).split())


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"_class_name": "LCMScheduler"}, "its scheduler is LCMScheduler; supported are DDIMScheduler"),
        ({"thresholding": True}, "thresholding: True; supported is False"),
        ({"prediction_type": "flow"}, "prediction_type: flow; supported is epsilon, v_prediction"),
        ({"_class_name": "PNDMScheduler"}, "skip_prk_steps: False; supported is True"),
        ({"beta_schedule": "exp"}, "beta_schedule: exp"),
    ],
)
def test_a_scheduler_that_is_not_known_is_refused(painter: Path, cli: Cli, setting: dict[str, Any], words: str) -> None:
    path = painter / "models/painter/scheduler/scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **setting}))
    assert words in refusal(painter, cli)


@pytest.mark.slow
def test_the_file_is_read_as_diffusers_reads_it(painter: Path, cli: Cli) -> None:
    """steps_offset becomes 1 and clip_sample False, whatever the file says."""
    path = painter / "models/painter/scheduler/scheduler_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "clip_sample": True, "steps_offset": 0}))
    assert cli("apply", painter / "painter.yaml").code == 0
    changed = images(painter)
    path.write_text(json.dumps(config))
    assert cli("apply", painter / "painter.yaml", "--new-run").code == 0
    np.testing.assert_array_equal(changed, images(painter))


@pytest.mark.parametrize("preset", ["text-to-image", "diffusion"])
def test_a_folder_that_is_not_there_is_one_problem(painter: Path, cli: Cli, preset: str) -> None:
    text = (painter / "painter.yaml").read_text().replace("models/painter", "models/paintre")
    (painter / "painter.yaml").write_text(text.replace("text-to-image", preset))
    done = cli("plan", painter / "painter.yaml")
    assert done.code == 1
    assert "There is no folder models/paintre. Paths are relative to the manifest." in done.out
    assert done.out.count("error[") - done.out.count("error[missing-package]") == 1


@pytest.mark.parametrize("name", ["unet/model.onnx", "tokenizer/merges.txt", "scheduler/scheduler_config.json"])
def test_a_missing_file_is_named(painter: Path, cli: Cli, name: str) -> None:
    (painter / "models/painter" / name).unlink()
    assert name.removesuffix(".onnx") in refusal(painter, cli)


def test_components_of_two_pipelines_are_refused(painter: Path, cli: Cli) -> None:
    shutil.copy(painter / "models/painter/vae_decoder/model.onnx", painter / "models/painter/unet/model.onnx")
    assert "unet has no input sample; it has latent_sample" in refusal(painter, cli)


def test_a_vocabulary_beyond_the_table_is_refused(painter: Path, cli: Cli) -> None:
    path = painter / "models/painter/tokenizer/vocab.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more</w>": 5000}))
    assert "ids up to 5000" in refusal(painter, cli)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("components:\n      unet:", "components:\n      unett:", 'has no component "unett". Did you mean "unet"?'),
        ("components:\n      unet:", "unet:", "go under pipelines: {paint: {components: {unet:"),
        ("providers: [CPU]", "providers: [{provider: CPU, options: {unet: {}}}]", "components: {unet:"),
        ("height: 32", "height: 30", "multiple of 8"),
        ("steps: 2", "steps: [2]", "whole number"),
    ],
)
def test_what_is_keyed_or_spelt_wrong_is_shown_right(painter: Path, cli: Cli, old: str, new: str, words: str) -> None:
    text = (painter / "painter.yaml").read_text()
    assert old in text
    (painter / "painter.yaml").write_text(text.replace(old, new))
    assert words in refusal(painter, cli)


def test_dimensions_that_a_component_has_fixed_are_those_of_its_graph(painter: Path, cli: Cli) -> None:
    """As QNN needs them: shorter batches are filled up, and another height is refused."""

    def fixed(**sizes: int) -> Path:
        component = f"components:\n      vae_decoder: {{session: {{free_dimension_overrides: {json.dumps(sizes)}}}}}\n"
        (painter / "fixed.yaml").write_text(text.replace("components:\n", component))
        return painter / "fixed.yaml"

    text = (painter / "painter.yaml").read_text()
    assert "vae_decoder takes latents of 4, 8, width, and images of 32 x 32" in " ".join(
        cli("plan", fixed(height=8)).out.split()
    )
    (before, after) = (
        cli("plan", path, "--format", "json").json for path in (painter / "painter.yaml", fixed(batch=3))
    )
    rows = [one["steps"][-1]["pipeline"]["preset"]["ports"]["vae_decoder"]["rows"] for one in (before, after)]
    assert rows == [None, 3]


@pytest.mark.slow
def test_a_prompt_longer_than_the_model_takes_is_cut_and_a_bad_seed_fails_alone(painter: Path, cli: Cli) -> None:
    (painter / "prompts.csv").write_text(f"prompt,seed\n{'sea ' * 300},1\nsea,-1\nsea,2\n")
    text = (painter / "painter.yaml").read_text() + "    errors: {max_failed: 1}\n"
    (painter / "painter.yaml").write_text(text)
    done = cli("apply", painter / "painter.yaml")
    assert done.code == 0, done.out + done.err
    assert len(images(painter)) == 2
    (failed,) = [json.loads(line) for line in (painter / "outbox/paintings/_failed.jsonl").read_text().splitlines()]
    assert failed["row"] == 1


@pytest.mark.slow
def test_a_component_has_adapters_of_its_own(painter: Path, cli: Cli) -> None:
    """A low-rank pair beside the unet's last bias: two more inputs of its graph, with defaults that change nothing."""
    path = painter / "models/painter/unet/model.onnx"
    model = onnx.load(str(path))
    for name, shape in (("lora_A", [1, 0]), ("lora_B", [0, 1])):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, shape, []))
        rank = ["one", "rank"] if name == "lora_A" else ["rank", "one"]
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, rank))
    last = model.graph.node[-1]
    last.output[0] = "before"
    model.graph.node.append(helper.make_node("MatMul", ["lora_A", "lora_B"], ["change"]))
    model.graph.node.append(helper.make_node("Add", ["before", "change"], ["out_sample"]))
    onnx.save(model, str(path))
    make_adapter(
        painter / "lighter.onnx_adapter",
        lora_A=np.full((1, 2), 0.5, np.float32),
        lora_B=np.full((2, 1), 0.5, np.float32),
    )
    assert cli("apply", painter / "painter.yaml").code == 0
    plain = images(painter)
    text = (painter / "painter.yaml").read_text().replace("unet: {", "unet: {adapter: lighter, ")
    (painter / "painter.yaml").write_text(
        f"{text}adapters: {{lighter: {{path: lighter.onnx_adapter, model: paint.unet}}}}\n"
    )
    done = cli("apply", painter / "painter.yaml", "--new-run")
    assert done.code == 0, done.out + done.err
    assert "adapter.without_effect" not in done.err
    assert np.abs(images(painter).astype(int) - plain).max() > 1


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("content", "words"),
    [("text", "is not a .npy file"), ([1, 4, 8, 8], "is [1, 4, 8, 8], and the images need [4, 4, 4]")],
)
def test_starting_noise_of_another_shape_is_refused(painter: Path, cli: Cli, content: Any, words: str) -> None:
    if content == "text":
        (painter / "noise.npy").write_text("text")
    else:
        np.save(painter / "noise.npy", np.zeros(content))
    text = (painter / "painter.yaml").read_text().replace("    height: 32", "    latents: noise.npy\n    height: 32")
    (painter / "painter.yaml").write_text(text)
    assert words in refusal(painter, cli)
    np.save(painter / "noise.npy", np.zeros((4, 4, 4)))
    assert cli("apply", painter / "painter.yaml").code == 0
    first = images(painter)
    assert np.array_equal(first[1], first[2]), "the seed counts no more"


@pytest.mark.slow
def test_images_are_written_as_files_beside_the_rows(painter: Path, cli: Cli) -> None:
    assert cli("apply", painter / "painter.yaml").code == 0
    expected = images(painter)
    text = (painter / "painter.yaml").read_text()
    files = text.replace("outbox/paintings, format: npz", "outbox/files, images: [image], rows_per_part: 2")
    (painter / "painter.yaml").write_text(files)
    done = cli("apply", painter / "painter.yaml")
    assert done.code == 0, done.out + done.err
    parts = sorted((painter / "outbox/files").glob("part-*"))
    lines = [json.loads(line) for path in parts for line in path.read_text().splitlines()]
    assert [line["image"] for line in lines] == [f"images/image-{row:08d}.png" for row in range(4)]
    for line, image in zip(lines, expected, strict=True):
        with Image.open(painter / "outbox/files" / line["image"]) as picture:
            np.testing.assert_array_equal(np.asarray(picture), image)
    (painter / "painter.yaml").write_text(files.replace("images: [image]", "images: [picture]"))
    assert "unusable-image-column" in refusal(painter, cli)


@pytest.mark.slow
def test_files_go_to_a_store_with_their_part(
    painter: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A child, in which a model is tried that may trap, has a store in memory of its own.
    monkeypatch.setattr("ortdeploy.cli.children.apply.may_end_its_process", lambda *_: False)
    text = (painter / "painter.yaml").read_text()
    (painter / "painter.yaml").write_text(
        text.replace("outbox/paintings, format: npz", '"memory://gallery", images: [image]')
    )
    assert cli("apply", painter / "painter.yaml").code == 0
    assert len(store.glob("/gallery/images/*.png")) == 4
    assert store.exists("/gallery/part-00000000.jsonl")


@pytest.mark.parametrize(("name", "content"), [("merges.txt", None), ("vocab.json", "{"), ("vocab.json", '{"a": 1}')])
def test_a_vocabulary_that_is_none_is_refused(painter: Path, cli: Cli, name: str, content: str | None) -> None:
    path = painter / "models/painter/tokenizer" / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert name in refusal(painter, cli)


def test_one_digest_pins_the_whole_folder(painter: Path, cli: Cli) -> None:
    assert cli("apply", painter / "painter.yaml").code == 0
    assert cli("lock", painter / "painter.yaml", "--check").code == 1
    locked = cli("lock", painter / "painter.yaml")
    assert locked.code == 0, locked.out + locked.err
    assert locked.out.endswith("  models/painter  written\n")
    assert cli("lock", painter / "painter.yaml", "--check").code == 0
    assert "1 finished already" in cli("plan", painter / "painter.yaml").out, "what is pinned is the same work"
    path = painter / "models/painter/tokenizer/merges.txt"
    path.write_text(path.read_text() + "\n")
    assert "models/painter has the digest" in refusal(painter, cli)
    assert cli("lock", painter / "painter.yaml", "--check").code == 1
