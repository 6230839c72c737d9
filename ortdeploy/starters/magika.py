"""Models that tell the types of files by the bytes of both ends, with their settings in a file beside them (Magika)."""

from collections.abc import Iterator
from typing import Any

from ortdeploy.manifest.write import scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import label_lines
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.provenance import Page

FAMILY = "a model that tells types of files (Magika)"
_INPUT = FORMAT = "bytes"
_RANK = 2
_BATCH = 32
_SAMPLES = {
    "page.html": b"<!DOCTYPE html>\n<html><head><title>A page</title></head><body><p>Hello.</p></body></html>\n",
    "script.py": b'import sys\n\n\ndef main() -> int:\n    print("hello")\n    return 0\n\n\nsys.exit(main())\n',
}


def takes_files(subject: Subject) -> bool:
    """Return whether a model is fed the bytes of files: of a folder it reads all, whatever they end as."""
    value = subject.only_input
    return value is not None and value.name == _INPUT and subject.beside(*_settings_of(subject)) is not None


def _settings_of(subject: Subject) -> tuple[str, str]:
    return "config.min.json", f"{subject.model.stem}.json"


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from files to their types, if the model's settings lie beside it."""
    files = _settings_of(subject)
    beside = subject.beside(*files)
    scores = [name for name, shape in subject.ran.outputs.items() if len(shape) == _RANK]
    if not takes_files(subject) or beside is None or not scores:
        return
    if subject.data is not None and subject.data.format != FORMAT:
        return
    settings = subject.settings(*files)
    labels = settings.get("target_labels_space")
    sizes = [settings.get(key) for key in ("beg_size", "end_size", "block_size", "padding_token")]
    if not isinstance(labels, list) or len(labels) != subject.shape_of(scores[0])[1] or not _whole(sizes):
        return
    content = label_lines(labels)
    if content is not None:
        yield _starter(subject, beside, scores[0], content, sizes)


def _whole(sizes: list[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _starter(subject: Subject, beside: str, scores: str, labels: bytes, sizes: list[Any]) -> Starter:
    first, last, block, filling = sizes
    dtype = subject.inputs[0].tensor.dtype
    names, folder = f"{subject.stem}-labels.txt", f"{subject.stem}-sample"
    axis = provenance.graph("axis", 1)
    lines = [
        f"{{op: Concat, in: {{inputs: [$start, $end]}}, attributes: {{axis: {axis}}}, out: bytes}}",
        f"{{run: {scalar(subject.name)}, in: {{{_INPUT}: $bytes}}, out: {{{scalar(scores)}: scores}}}}",
        "{do: argmax, in: {x: $scores}, out: [best, score]}",
        f"{{do: labels, in: {{x: $best, from: {provenance.beside('labels', scalar(names))}}}, out: type}}",
    ]
    of_start = f"{{head: {block}}}, {{strip: start}}, {{head: {first}}}, {{cast: {dtype}}}"
    of_end = f"{{tail: {block}}}, {{strip: end}}, {{tail: {last}}}, {{cast: {dtype}}}"
    ends = f"[{of_start}, {{pad: {first}, value: {filling}}}]"
    tails = f"[{of_end}, {{pad: {last}, value: {filling}, side: start}}]"
    read = (f"format: {provenance.graph('format', FORMAT)}", "columns: {start: data, end: data}", "key: [path, size]")
    text = (
        yaml_text.head(
            f"A model that tells types of files, by {beside} beside it: bytes of both ends, and their names."
        )
        + yaml_text.models(subject)
        + yaml_text.pipeline("identify", lines, {"type": "$type", "score": "$score"})
        + yaml_text.input_section(subject, folder, *read)
        + f"    prepare:\n      start: {provenance.beside('start', ends)}\n"
        + f"      end: {provenance.beside('end', tails)}\n"
        + yaml_text.batch(None, _BATCH)
        + yaml_text.output(subject)
    )
    files = {} if subject.data else {f"{folder}/{name}": content for name, content in _SAMPLES.items()}
    return Starter(family=FAMILY, page=Page(marked=text), files=files | {names: labels})
