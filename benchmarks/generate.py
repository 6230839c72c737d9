"""Texts of `preset: generate` against loops over the API of ONNX Runtime GenAI, by hand, that write the same tokens.

The model is that of deployments/writer.yaml with a wider hidden state and a larger vocabulary, so that a token takes
milliseconds, and without an end: each text has as many tokens as are asked for. Rows have prompts of 4 to 7 tokens, in
groups of four of one length, or mixed. `Engine` batches rows of any length; without PagedAttention, which has no kernel
for CPUs, its batches are as fixed as others. ortdeploy's figure is the job's time with its commits, that by hand the
loop's.

Run: python benchmarks/generate.py [--rows 48] [--tokens 48] [--hidden 512] [--vocabulary 16000] [--rounds 5]
"""

import argparse
import csv
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import run

import numpy as np
import onnx
from measure import Rounds, describe_machine, interleaved, ortdeploy

EXAMPLES = Path(__file__).parent.parent / "deployments"
sys.path.insert(0, str(EXAMPLES))
tiny = importlib.import_module("make_tiny_writer")

TOGETHER = 4

MANIFEST = """\
version: 1
pipelines:
  write:
    preset: generate
    from: writer
    session: {intra_op_num_threads: 1}
    max_new_tokens: TOKENS
    components: COMPONENTS
jobs:
  run:
    pipeline: write
    batch: {size: ROWS}
    input: {path: PROMPTS.csv, key: [id]}
    output: {path: out, format: csv}
"""

SETUP = """\
import csv, sys, time
import numpy as np, onnxruntime_genai as og
og.disable_telemetry_events()
tokens, together = int(sys.argv[1]), int(sys.argv[2])
config = og.Config("writer")
config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}')
model = og.Model(config)
tokenizer = og.Tokenizer(model)
with open(f"{sys.argv[3]}.csv", newline="") as file:
    rows = list(csv.DictReader(file))
begin, used = time.perf_counter(), time.process_time()
prompts = [tokenizer.encode(row["prompt"]) for row in rows]
texts = [[] for _ in rows]
"""

GENERATOR = """\
for start in range(0, len(rows), together):
    some = prompts[start:start + together]
    params = og.GeneratorParams(model)
    params.set_search_options(batch_size=len(some), max_length=len(some[0]) + tokens, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.concatenate(some))
    while not generator.is_done():
        generator.generate_next_token()
    for place in range(len(some)):
        texts[start + place] = generator.get_sequence(place)[len(some[0]):]
"""

ENGINE = """\
engine = og.Engine(model)
events = engine.create_event_buffer(64)
places = {}
for place, prompt in enumerate(prompts):
    request = engine.create_request(options=og.RequestOptions())
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(tokens)
    options.set_do_sample(False)
    request.begin_turn(prompt, options)
    places[request] = place
while engine.has_pending_requests():
    for event in engine.run(events):
        if event.token is not None:
            texts[places[event.request]].append(event.token)
        if event.finish_reason != og.FinishReason.NONE:
            event.request.close()
"""

END = """\
with open("by_hand.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerows((row["id"], tokenizer.decode(np.array(text, np.int32))) for row, text in zip(rows, texts))
print(time.perf_counter() - begin, time.process_time() - used)
"""


MANIFESTS = {"alone": (1, "alike"), "together": (TOGETHER, "alike"), "mixed": (TOGETHER, "mixed")}
"""The rows of a batch, and the prompts."""

LOOPS = {
    "Generator, alone": (GENERATOR, 1, "alike"),
    "Generator, together": (GENERATOR, TOGETHER, "alike"),
    "Engine": (ENGINE, TOGETHER, "alike"),
    "Engine, mixed": (ENGINE, TOGETHER, "mixed"),
}

COMPARED = (
    ("alone", "Generator, alone"),
    ("together", "Generator, together"),
    ("together", "Engine"),
    ("mixed", "Engine, mixed"),
)


def save_writer(folder: Path, hidden: int, vocabulary: int) -> None:
    """Write the folder of a model whose texts do not end."""
    ids, merges = tiny.make_vocabulary()
    weights = tiny.make_weights(ids)
    closed = weights["follows"][weights["embedding"][ids[tiny.written(tiny.CLOSE)]].argmax()]
    closed[:] = 0
    closed[ids[tiny.written(tiny.BEGIN)]] = 10
    concepts, known = weights["follows"].shape
    for name, one in weights.items():
        wider = [(0, {concepts: hidden - concepts, known: vocabulary - known}.get(size, 0)) for size in one.shape]
        weights[name] = np.pad(one, wider)
    folder.mkdir()
    onnx.save(tiny.make_model(weights), folder / "model.onnx")
    for name, value in tiny.settings(ids, merges, hidden).items():
        if name == "genai_config.json":
            value["model"]["vocab_size"] = vocabulary
        (folder / name).write_text(json.dumps(value), encoding="utf-8")


def save_prompts(folder: Path, rows: int, name: str) -> None:
    """Write prompts: of `alike`, each group of `TOGETHER` is of one length."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "prompt"])
        for row in range(rows):
            words = 1 + (row // TOGETHER if name == "alike" else row) % 4
            writer.writerow([row, "the" + f" {tiny.PARTS[row % 5]}" * words + f" {row % 10}"])


def texts(paths: Sequence[Path]) -> list[str]:
    """Return the texts of some files."""
    found: list[str] = []
    for part in paths:
        with part.open(newline="") as file:
            found += [row[1] for row in csv.reader(file) if row[0] != "id"]
    return found


def save_manifest(folder: Path, tokens: int, name: str) -> None:
    """Write `NAME.yaml`."""
    size, prompts = MANIFESTS[name]
    components = "{}" if size == 1 else "{decoder: {row_independence: false}}"
    told = {"TOKENS": tokens, "ROWS": size, "COMPONENTS": components, "PROMPTS": prompts}
    manifest = MANIFEST
    for word, value in told.items():
        manifest = manifest.replace(word, str(value))
    (folder / f"{name}.yaml").write_text(manifest)


def by_ortdeploy(folder: Path, name: str) -> tuple[float, float, list[str]]:
    """Apply `NAME.yaml` anew; return seconds and processor seconds of its job, and the texts."""
    for left in (folder / "out", folder / ".ortdeploy"):
        shutil.rmtree(left, ignore_errors=True)
    run(ortdeploy("apply", f"{name}.yaml"), cwd=folder, check=True, capture_output=True)
    told = json.loads((folder / "out/_run.json").read_text())
    used = told["process"]["cpu_seconds_user"] + told["process"]["cpu_seconds_system"]
    return told["seconds"], used, texts(sorted(folder.glob("out/part-*")))


def by_hand(folder: Path, name: str, tokens: int) -> tuple[float, float, list[str]]:
    """Return seconds and processor seconds of a loop over all rows, and the texts."""
    loop, size, prompts = LOOPS[name]
    command = [sys.executable, "-c", SETUP + loop + END, str(tokens), str(size), prompts]
    said = run(command, cwd=folder, check=True, capture_output=True, encoding="utf-8").stdout
    taken, used = map(float, said.split())
    return taken, used, texts([folder / "by_hand.csv"])


def main() -> None:
    """Print ratios: more is faster than by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("rows", 48), ("tokens", 48), ("hidden", 512), ("vocabulary", 16_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    busy, found = defaultdict(list), {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_writer(folder / "writer", asked.hidden, asked.vocabulary)
        for name in ("alike", "mixed"):
            save_prompts(folder, asked.rows, name)
        for name in MANIFESTS:
            save_manifest(folder, asked.tokens, name)
        cases = {name: partial(by_ortdeploy, folder, name) for name in MANIFESTS}
        cases |= {name: partial(by_hand, folder, name, asked.tokens) for name in LOOPS}

        def measured(name: str) -> float:
            taken, used, found[name] = cases[name]()
            busy[name].append(used)
            return taken

        taken = interleaved({name: partial(measured, name) for name in cases}, asked.rounds)
    alike = all(one == found["alone"] for one in found.values())
    print(f"{describe_machine()}, load {os.getloadavg()[0]:.1f}; all write the same texts: {alike}")
    used = Rounds(busy)
    for name in cases:
        print(f"{name:20} {taken[name]:6.2f} s, of processors {used[name]:6.2f} s")
    for name, other in COMPARED:
        print(f"{name:8} over {other:20} {taken.ratio(other, name):.2f}, by processors {used.ratio(other, name):.2f}")


if __name__ == "__main__":
    main()
