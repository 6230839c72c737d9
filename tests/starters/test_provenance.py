"""Each value that a starter writes has an origin; what is printed of them is what is marked, and comments are where they are."""

import argparse
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from support import family_models as families

from ortdeploy.cli.commands.init import subject_of
from ortdeploy.manifest.write import scalar
from ortdeploy.starters import provenance
from ortdeploy.starters.catalogue import starters_for
from ortdeploy.starters.provenance import Given, Origin, Page, assumptions, smaller_batches
from ortdeploy.starters.samples import recording

MODELS: dict[str, Callable[[Path], Any]] = {
    "answers": families.answer_finder,
    "band": families.band,
    "between": families.between,
    "captcha": families.captcha,
    "classifier": families.classifier,
    "encoder": families.encoder,
    "file typer": families.file_typer,
    "fixed batch": families.fixed_batch,
    "hearer": families.hearer,
    "hearer of lengths": partial(families.hearer, lengths=True),
    "hearer of windows": partial(families.hearer, samples=800),
    "listener": families.listener,
    "open classifier": partial(families.classifier, open_sizes=True),
    "reader": families.text_recogniser,
    "table": families.table,
    "detr": families.detr,
    "segmenter": families.segmenter,
    "sound classifier": families.sound_classifier,
    "tags": families.token_classifier,
    "torchvision": families.torchvision_detector,
    "text classifier": partial(families.encoder, output="logits", width=3),
    "reranker": partial(families.encoder, output="logits", width=1),
    "text detector": families.text_detector,
    "turned boxes": partial(families.ultralytics, task="obb"),
    "ultralytics": families.yolo,
    "wake word": families.wake_word,
    "yolox": families.yolox,
}
WIRING = {
    "do",
    "run",
    "op",
    "out",
    "each",
    "as",
    "value_as",
    "pipeline",
    "model",
    "preset",
    "key",
    "columns",
    "explode",
}
NAMES = {"collect", "outputs", "softmax", "argmax", "labels"}


def pages(model: str, folder: Path, *, data: Path | None = None) -> list[Page]:
    """Return the pages of all starters for a model."""
    MODELS[model](folder / "m.onnx")
    asked = argparse.Namespace(model=str(folder / "m.onnx"), data=str(data) if data else None)
    subject = subject_of(folder / "m.onnx", folder / "m.yaml", asked)
    return [starter.page for starter in starters_for(subject)]


def unmarked(page: Page) -> Iterator[str]:
    """Yield the values of a manifest that are not within a value of a known origin, with their path.

    Names of steps, values, columns and outputs are how its parts hang together: they say nothing about the model.
    """
    spans = [(one.begin, one.end) for one in page.written]

    def walk(node: yaml.Node, path: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield from walk(value, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from walk(item, path)
        elif not any(begin <= node.start_mark.index < end for begin, end in spans):
            wired = node.value.startswith("$") or WIRING.intersection(path) or NAMES.intersection(path)
            is_text = node.tag == "tag:yaml.org,2002:str"
            if not (wired and is_text) and path != ("version",):
                yield f"{'.'.join(path)}: {node.value}"

    top = yaml.compose(page.plain)
    assert top is not None
    yield from walk(top, ())


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_each_value_that_is_written_has_an_origin(tmp_path: Path, model: str) -> None:
    found = pages(model, tmp_path)
    assert found
    assert [list(unmarked(page)) for page in found] == [[] for _ in found]


def test_each_value_of_some_families_has_an_origin(tmp_path: Path) -> None:
    for model in ("between", "classifier", "hearer of windows", "text classifier", "ultralytics"):
        (tmp_path / model).mkdir()
        for page in pages(model, tmp_path / model):
            assert not list(unmarked(page)), model


@pytest.mark.parametrize("model", ["classifier", "text detector", "wake word"])
def test_an_empty_line_stands_between_sections_alone(tmp_path: Path, model: str) -> None:
    for page in pages(model, tmp_path):
        behind = page.plain.split("\n\n")[1:]
        assert [text[:1] for text in behind if not text[:1].isalpha()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["band", "sound classifier", "hearer", "hearer of lengths", "hearer of windows", "listener", "wake word"]
)
def test_each_value_that_is_written_for_recordings_of_the_user_has_an_origin(tmp_path: Path, model: str) -> None:
    (tmp_path / "mine.wav").write_bytes(recording())
    found = pages(model, tmp_path, data=tmp_path / "mine.wav")
    assert found
    assert [list(unmarked(page)) for page in found] == [[] for _ in found]


def test_what_is_made_up_is_printed_and_commented_and_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    families.between(tmp_path / "m.onnx")
    said = cli("init", tmp_path / "m.onnx", "-o", tmp_path / "m.yaml")
    assert said.code == 1
    assert "It ran 4 rows." in said.out
    lines = (tmp_path / "m.yaml").read_text().splitlines()
    commented = {text.split(":")[0].strip(): number for number, text in enumerate(lines, 1) if "# made up: " in text}
    assert list(commented) == ["low", "high"]
    *_, made_up, check = said.out.splitlines()
    assert made_up == (
        f"Made up in {tmp_path / 'm.yaml'}, and results depend on it: low in line {commented['low']}, high in line "
        f"{commented['high']} (nothing tells its value; write what the model was made for)."
    )
    assert check.startswith("The model file does not say.")
    assert cli("init", tmp_path / "m.onnx", "-o", tmp_path / "quiet.yaml", "-q").out.endswith(check + "\n")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.lists(st.tuples(TEXT, TEXT, st.sampled_from(Origin), TEXT, TEXT, st.booleans()), min_size=1, max_size=6)


@given(VALUES)
def test_a_page_gives_back_what_was_put_into_it_whatever_it_is_called(
    values: list[tuple[str, str, Origin, str, str, bool]],
) -> None:
    put = [
        Given(name=name, text=scalar(text), origin=origin, because=because, write=write, decides=decides)
        for name, text, origin, because, write, decides in values
    ]
    page = Page(marked="top:\n" + "".join(f"  k{number}: {one}\n" for number, one in enumerate(put)))
    texts = [text for _, text, *_ in values]
    assert list(yaml.safe_load(page.plain)["top"].values()) == texts
    assert list(yaml.safe_load(page.text)["top"].values()) == texts, "comments change no value"
    one_line = provenance.one_line
    assert [(one.given.name, one.given.text, one.given.origin) for one in page.written] == [
        (one_line(one.name), one.text, one.origin) for one in put
    ]
    pairs = zip(page.plain.split("\n"), page.text.split("\n"), strict=True)
    commented = [number for number, (before, after) in enumerate(pairs, 1) if before != after]
    assert commented == [number for number, one in enumerate(put, 2) if one.is_needed]
    told = "\n".join(assumptions(page.written, "m.yaml"))
    assumed = [one for one in put if one.origin in {Origin.CONVENTION, Origin.MADE_UP}]
    assert all(one_line(one.name) in told for one in assumed)
    assert bool(told) == bool(assumed)


def test_values_within_values_keep_their_lines_and_origins() -> None:
    inner = provenance.made_up("size", "3", "nobody knows", "the size")
    page = Page(marked=f"a:\n{provenance.graph('all', f'  b: 1{chr(10)}  c: {inner}{chr(10)}')}d: 2\n")
    assert page.text == "a:\n  b: 1\n  c: 3  # made up: nobody knows; write the size\nd: 2\n"
    assert [(one.given.name, one.line) for one in page.written] == [("all", 2), ("size", 3)]


def test_batches_become_smaller_only_where_the_graph_does_not_say_them() -> None:
    page = Page(
        marked=f"a: {provenance.choice('batch', 256)}\nb: {provenance.choice('batch', 4)}\n"
        f"c: {provenance.graph('batch', 64)}\nd: {provenance.choice('output', 256)}\n"
    )
    sizes = [[*yaml.safe_load(one.plain).values()] for one in smaller_batches(page)]
    assert sizes == [[32, 4, 64, 256], [4, 4, 64, 256], [1, 1, 64, 256]]
    assert not list(smaller_batches(Page(marked=f"a: {provenance.graph('batch', 64)}\n")))
    assert re.search("[\x01-\x03]", page.plain) is None
