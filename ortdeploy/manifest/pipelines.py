"""What the user said about pipelines, as frozen dataclasses: steps in a line, or a preset."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.manifest.document import Path
from ortdeploy.manifest.op_steps import OpSpec, read_op, wire_name
from ortdeploy.tensors.answers import columns_of

DEFAULT_EACH_BATCH = 32
DEFAULT_STEPS, DEFAULT_GUIDANCE, DEFAULT_SIZE = 50, 7.5, 512


TEXT_TO_IMAGE, DIFFUSION, GENERATE = "text-to-image", "diffusion", "generate"
"""The presets: what ortdeploy paints itself, what it leaves to optimum-onnx, and to ONNX Runtime GenAI."""

COMPONENTS = ("text_encoder", "unet", "vae_decoder")
"""The models of a Stable-Diffusion-1/2-shaped folder that making images from text needs."""

KNOWN_COMPONENTS = {
    TEXT_TO_IMAGE: COMPONENTS,
    DIFFUSION: (*COMPONENTS, "text_encoder_2", "text_encoder_3", "transformer", "vae_encoder"),
    GENERATE: ("encoder", "vision", "speech", "embedding", "decoder"),
}

_TEXTS = ("text", "tokens", "finish_reason", "input_tokens")
_SEGMENTS = ("segments", "begin", "end")
"""What is said between two time stamps of a recording, and when it begins and ends."""

_ON_DEMAND = ("seconds", "log_probabilities")
"""What only an output gets whose columns name it."""

SPEECH = "speech"
"""The task of a folder that hears recordings; those of others say what goes through a chat template."""

SEARCH = ("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "num_beams", "seed", "stop")
"""The keys that say how a text is written."""

OF_SPEECH = ("language", "translate", "timestamps")
"""The keys that say how a recording is written down."""

WITHOUT_ADAPTERS = "GenAI runs such models without adapters, and says nothing of it"
"""Why models that see take none: GenAI 0.18 sets them for a run that is not the decoder's."""

_OF_IMAGES = ("steps", "guidance_scale", "height", "width", "latents")

OWN_KEYS = {
    TEXT_TO_IMAGE: _OF_IMAGES,
    DIFFUSION: (*_OF_IMAGES, "task", "arguments"),
    GENERATE: (*SEARCH, "chat", "system", "json_schema", "image_folder", *OF_SPEECH),
}
"""The keys of presets that not all of them have."""

FILES = {
    "ctc_greedy": {"from": "lines"},
    "labels": {"from": "lines"},
    "letters": {"map": "letters"},
    "look_up": {"table": "table"},
    "neighbours": {"of": "vectors"},
    "tokenize": {"tokenizer": "tokenizer"},
    "tokenize_clip": {"folder": "vocabulary"},
}
"""The options of operations that name a file or a folder, and what it must hold; a plan carries `lines` themselves."""

IN_TURN = ("track",)
"""The operations that pass a state of their own from a row to the next one of its file."""


CONSTANT = "constant"
"""The key of a step that takes a constant from a file. It is an op step, Identity, of what the file holds."""


class StepOfPipeline(Struct, frozen=True, kw_only=True):
    """One step: `run` a model, `do` an operation, an `op` of ONNX, or `each` of a value's items through further steps.

    `name` is what it runs or does, or that of the value. `wires` are arguments that are values, `options` those
    that are literals (of `run`, constants); `outputs` are pairs of what the step gives and its name in the pipeline.
    `item` is what the inner steps call one of the items; `batch` of them are run together, and a row may have `most`.
    `state` says which value an item takes from which of the item before; an operation, from which of the row before.
    `fuse`: the op steps around a `run` go into its model's session. `by_row`: its model has no dimension for rows, and
    runs once for each row.
    """

    kind: str
    name: str
    wires: Mapping[str, str]
    options: Mapping[str, Any]
    outputs: tuple[tuple[str, str], ...]
    at: Path
    adapters: tuple[str, ...] = ()
    item: str = ""
    batch: int = DEFAULT_EACH_BATCH
    most: int | None = None
    steps: tuple["StepOfPipeline", ...] = ()
    state: Mapping[str, str] = field(default_factory=dict)
    op: OpSpec | None = None
    fuse: bool = False
    by_row: bool = False

    @property
    def files(self) -> Mapping[str, str]:
        """The options that name a file or a folder, and what it must hold."""
        if self.kind == "do":
            return FILES.get(self.name, {})
        return {CONSTANT: "array"} if CONSTANT in self.options else {}


class PresetSpec(Struct, frozen=True, kw_only=True):
    """A folder and how images or texts are made with it; `parts` are the models of its components by their names.

    `kind` is the preset's name. `adapters` are those of components; `sha256` pins the whole folder. `task` is what a
    pipeline of optimum-onnx does, or what goes through a chat template; or SPEECH. `arguments` are more of its call's,
    or say how a text is written. `row_by_row`: rows do not run together. `files` are those of its models by their
    parts, if GenAI opens them, or else those that the manifest names in vain. `image_folder` is where the pictures are
    that rows name.
    """

    kind: str
    folder: str
    parts: Mapping[str, str]
    steps: int
    guidance_scale: float
    height: int
    width: int
    latents: str | None
    adapters: Mapping[str, tuple[str, ...]]
    sha256: str | None = None
    task: str = TEXT_TO_IMAGE
    arguments: Mapping[str, Any] = field(default_factory=dict)
    row_by_row: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    image_folder: str | None = None

    @property
    def results(self) -> tuple[str, ...]:
        """What it gives for a row, without the columns of answers."""
        if self.kind != GENERATE:
            return ("image",)
        if self.task == SPEECH:
            return (*_TEXTS, "language", *(_SEGMENTS if self.arguments.get("timestamps") else ()))
        return (*_TEXTS, *_ON_DEMAND)

    @property
    def answers(self) -> Mapping[str, str]:
        """The columns of answers that fit a schema, with their element types."""
        return columns_of(self.arguments.get("json_schema")) if self.kind == GENERATE else {}

    @property
    def sees(self) -> bool:
        """Whether it writes about pictures, or about recordings beside."""
        return self.kind == GENERATE and "vision" in self.parts

    @property
    def known_parts(self) -> tuple[str, ...]:
        """The components that such a folder may have; parts of a decoder have names of their own."""
        return (*KNOWN_COMPONENTS[self.kind], *self.files)


class PipelineSpec(Struct, frozen=True, kw_only=True):
    """A pipeline: `outputs` are its results by name, each a value of its steps. `definition` is its text as JSON.

    `components` are those that the manifest names. `state` says which value a row takes from which of the row before;
    `reset` are columns whose change makes it begin anew.
    """

    name: str
    steps: tuple[StepOfPipeline, ...]
    outputs: Mapping[str, str]
    at: Path
    definition: str
    preset: PresetSpec | None = field(default=None)
    components: tuple[str, ...] = ()
    state: Mapping[str, str] = field(default_factory=dict)
    reset: tuple[str, ...] = ()

    def adapter_uses(self) -> "Iterator[tuple[str, tuple[str, ...], Path]]":
        """Yield each model with the adapters that a step or a component names for it, and where."""
        for step in walk(self.steps):
            if step.adapters:
                yield step.name, step.adapters, (*step.at, "adapter")
        for part, names in (self.preset.adapters if self.preset else {}).items():
            if self.preset and part in self.preset.parts:
                yield self.preset.parts[part], names, (*self.at, "components", part, "adapter")

    @property
    def on_demand(self) -> tuple[str, ...]:
        """The results that only an output gets whose columns name them."""
        results = self.preset.results if self.preset is not None else ()
        return tuple(name for name in _ON_DEMAND if name in results)

    @property
    def writer(self) -> str | None:
        """The model that writes its texts, whose adapters a job may choose by row."""
        if self.preset is None or self.preset.kind != GENERATE or self.preset.task == SPEECH or self.preset.sees:
            return None
        return self.preset.parts.get("decoder")

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that it names, each once."""
        return tuple(dict.fromkeys(name for _, names, _ in self.adapter_uses() for name in names))

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it runs, each once."""
        if self.preset is not None:
            return tuple(self.preset.parts.values())
        return tuple(dict.fromkeys(step.name for step in walk(self.steps) if step.kind == "run"))


def walk(steps: Sequence[StepOfPipeline]) -> Iterator[StepOfPipeline]:
    """Yield every step, those inside of others too."""
    for step in steps:
        yield step
        yield from walk(step.steps)


def read_pipeline(name: str, data: Mapping[str, Any]) -> PipelineSpec:
    """Read a pipeline that the schema has accepted."""
    at: Path = ("pipelines", name)
    kept = {key: value for key, value in data.items() if key not in {"providers", "components", "sha256"}}
    kept["adapters"] = {
        part: own["adapter"] for part, own in data.get("components", {}).items() if "adapter" in (own or {})
    }
    definition = json.dumps(kept, sort_keys=True)
    if "preset" in data:
        preset = _preset(name, data)
        outputs = {result: result for result in (*preset.results, *preset.answers)}
        return PipelineSpec(
            name=name,
            steps=(),
            outputs=outputs,
            at=at,
            definition=definition,
            preset=preset,
            components=tuple(data.get("components", ())),
        )
    steps = tuple(_step(step, (*at, "steps", index)) for index, step in enumerate(data["steps"]))
    outputs = {key: value[1:] for key, value in data["outputs"].items()}
    named = tuple(data.get("components", ()))
    in_turn = {taken: left for step in steps if step.kind == "do" for taken, left in step.state.items()}
    return PipelineSpec(
        name=name,
        steps=steps,
        outputs=outputs,
        at=at,
        definition=definition,
        components=named,
        state=_state(data) | in_turn,
        reset=tuple(dict.fromkeys((*data.get("reset", ()), *(["path"] if in_turn else [])))),
    )


def _state(data: Mapping[str, Any]) -> dict[str, str]:
    return {key: value[1:] for key, value in data.get("state", {}).items()}


def _preset(name: str, data: Mapping[str, Any]) -> PresetSpec:
    return PresetSpec(
        kind=data["preset"],
        folder=data["from"],
        parts={part: f"{name}.{part}" for part in _parts(data)},
        task=_chat(data) if data["preset"] == GENERATE else data.get("task", TEXT_TO_IMAGE),
        arguments=_writing(data) if data["preset"] == GENERATE else data.get("arguments", {}),
        steps=data.get("steps", DEFAULT_STEPS),
        guidance_scale=float(data.get("guidance_scale", DEFAULT_GUIDANCE)),
        height=data.get("height", DEFAULT_SIZE),
        width=data.get("width", DEFAULT_SIZE),
        latents=data.get("latents"),
        sha256=data.get("sha256"),
        image_folder=data.get("image_folder"),
        row_by_row=all((one or {}).get("row_independence") is not False for one in data.get("components", {}).values()),
        adapters={
            part: _names(own["adapter"]) for part, own in data.get("components", {}).items() if "adapter" in (own or {})
        },
        files={
            part: _file(data, part) for part in _parts(data) if data["preset"] == GENERATE or _names_file(data, part)
        },
    )


def _names_file(data: Mapping[str, Any], part: str) -> bool:
    return "file" in (data.get("components", {}).get(part) or {})


def _file(data: Mapping[str, Any], part: str) -> str:
    """Return the file of a model of a folder of GenAI: as its model builder names it, if the manifest does not."""
    alone = "model.onnx" if _parts(data) == ["decoder"] else f"{part}.onnx"
    return str((data.get("components", {}).get(part) or {}).get("file", alone))


def _chat(data: Mapping[str, Any]) -> str:
    if "encoder" in data.get("components", {}) and "chat" not in data:
        return SPEECH
    return str(data.get("chat", "prompt" if "system" in data else "none"))


def _writing(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in (*SEARCH, *OF_SPEECH, "system", "json_schema") if key in data}


def _parts(data: Mapping[str, Any]) -> Sequence[str]:
    """Return the components that a preset runs: those that the manifest names, and those that every folder has.

    A decoder may be in several parts of any names.
    """
    kind, named = data.get("preset", ""), data.get("components", {})
    known = KNOWN_COMPONENTS.get(kind, ())
    stages = [part for part in named if part not in known] if kind == GENERATE else []
    always = {TEXT_TO_IMAGE: COMPONENTS, GENERATE: () if stages else ("decoder",)}.get(kind, ())
    return [*(part for part in known if part in named or part in always), *stages]


def _names(adapter: Any) -> tuple[str, ...]:
    """Read an adapter's name, or a list of them."""
    return (adapter,) if isinstance(adapter, str) else tuple(adapter)


def component_models(name: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Path, Path]]:
    """Yield the models of a preset: name, keys as of a model, where they are written, and where its providers are.

    A component that names providers replaces the pipeline's whole; one that names none takes them.
    """
    at: Path = ("pipelines", name)
    shared = {key: data[key] for key in ("providers", "session", "checks") if key in data}
    folder = data["from"].rstrip("/") if "preset" in data else ""
    for part in _parts(data):
        own = data.get("components", {}).get(part)
        settings = {key: value for key, value in (own or {}).items() if key not in {"adapter", "file"}}
        generates = data["preset"] == GENERATE
        path = f"{folder}/{_file(data, part)}" if generates else f"{folder}/{part}/model.onnx"
        together = generates and len(_parts(data)) > 1
        model = {**shared, **settings, "path": path, "generates": generates, "together": together}
        here: Path = (*at, "components", part)
        yield f"{name}.{part}", model, here if own else at, here if "providers" in settings else at


def _step(data: Mapping[str, Any], at: Path) -> StepOfPipeline:
    if "each" in data:
        return StepOfPipeline(
            kind="each",
            name=data["each"][1:],
            wires={},
            options={},
            outputs=tuple(data["collect"].items()),
            at=at,
            item=data["as"],
            batch=data.get("batch", DEFAULT_EACH_BATCH),
            most=data.get("max"),
            state=_state(data),
            steps=tuple(_step(step, (*at, "steps", index)) for index, step in enumerate(data["steps"])),
        )
    if "op" in data:
        return _op_step(read_op(data, at))
    if CONSTANT in data:
        step = _op_step(read_op({"op": "Identity", "in": {"input": 0}, "out": data["out"]}, at))
        return replace(step, options={key: value for key, value in data.items() if key != "out"})
    wires = {key: name for key, value in data["in"].items() if (name := wire_name(value)) is not None}
    options = {key: value for key, value in data["in"].items() if key not in wires}
    if "run" in data:
        return StepOfPipeline(
            kind="run",
            name=data["run"],
            wires=wires,
            options=options,
            outputs=tuple(data["out"].items()),
            at=at,
            adapters=_names(data.get("adapter", ())),
            fuse=data.get("fuse", False),
            by_row=data.get("by_row", False),
        )
    names = [data["out"]] if isinstance(data["out"], str) else data["out"]
    outputs = tuple((str(index), name) for index, name in enumerate(names))
    name = data["do"]
    state = {f"{name}@{at[-1]}": f"{name}@{at[-1]} of the row"} if name in IN_TURN else {}
    return StepOfPipeline(kind="do", name=name, wires=wires, options=options, outputs=outputs, at=at, state=state)


def _op_step(op: OpSpec) -> StepOfPipeline:
    results = tuple(op.results())
    return StepOfPipeline(
        kind="op", name=op.operator, wires=dict(op.wires()), options={}, outputs=results, at=op.at, op=op
    )
