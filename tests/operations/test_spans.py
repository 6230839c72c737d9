"""Text out of tokens: spans of labels, answers, letters, and texts put together."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import effort

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType

WORDS = TensorType("string", (ROWS, None))
TYPES = {
    "text": TensorType("string", (ROWS,)),
    "offsets": TensorType("int64", (ROWS, None, 2)),
    "labels": WORDS,
    "scores": TensorType("float32", (ROWS, None)),
}


def spans(text: str, offsets: Any, labels: list[str], scores: Any = None, **options: Any) -> list[dict[str, Any]]:
    values = {
        "text": np.array([text], object),
        "offsets": np.array([offsets], np.int64).reshape(1, -1, 2),
        "labels": np.array([labels], object).reshape(1, -1),
    }
    values |= {} if scores is None else {"scores": np.array([scores], np.float32)}
    found, texts, places, names, sure = OPERATIONS["spans"].build(options, {name: TYPES[name] for name in values})(
        values
    )
    assert list(texts[0]) == [one["text"] for one in found[0]]
    assert np.asarray(places[0]).tolist() == [[one["start"], one["end"]] for one in found[0]]
    assert list(names[0]) == [one["label"] for one in found[0]]
    np.testing.assert_allclose(np.asarray(sure[0]), [one["score"] for one in found[0]], rtol=1e-6)
    return list(found[0])


def words(text: str) -> list[list[int]]:
    """Where the words of a text begin and end."""
    places, at = [], 0
    for word in text.split(" "):
        places.append([at, at + len(word)])
        at += len(word) + 1
    return places


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ("B-PER I-PER O B-LOC", ["PER Ann Lee", "LOC Bonn"]),
        ("I-PER I-PER O I-LOC", ["PER Ann Lee", "LOC Bonn"]),
        ("B-PER B-PER O O", ["PER Ann", "PER Lee"]),
        ("B-PER I-LOC I-LOC O", ["PER Ann", "LOC Lee in"]),
        ("B-PER E-PER I-PER S-LOC", ["PER Ann Lee", "PER in", "LOC Bonn"]),
        ("U-PER L-PER O U-LOC", ["PER Ann", "PER Lee", "LOC Bonn"]),
        ("B_PER I_PER O B_LOC", ["PER Ann Lee", "LOC Bonn"]),
        ("PER PER O LOC", ["PER Ann Lee", "LOC Bonn"]),
        ("PER O PER O", ["PER Ann", "PER in"]),
        ("B I B I", [" Ann Lee", " in Bonn"]),
        ("B M E S", [" Ann Lee in", " Bonn"]),
        ("O O O O", []),
    ],
)
def test_labels_are_read_in_each_of_their_forms(labels: str, wanted: list[str]) -> None:
    text = "Ann Lee in Bonn"
    assert [f"{one['label']} {one['text']}" for one in spans(text, words(text), labels.split())] == wanted


def test_the_score_is_the_mean_of_the_tokens_and_places_count_letters() -> None:
    text = "née Ann Lee"
    found = spans(text, [[0, 0], *words(text), [0, 0]], ["O", "O", "B-PER", "I-PER", "B-PER"], [1, 1, 0.5, 0.75, 1])
    assert found == [{"text": "Ann Lee", "start": 4, "end": 11, "label": "PER", "score": 0.625}]


def test_a_word_has_the_label_of_its_first_token() -> None:
    text = "Annabel Lee"
    offsets, labels = [[0, 4], [4, 7], [8, 11]], ["B-PER", "O", "I-PER"]
    assert [one["text"] for one in spans(text, offsets, labels)] == ["Anna", "Lee"]
    assert [one["text"] for one in spans(text, offsets, labels, by="word")] == ["Annabel Lee"]
    found = spans(text, offsets, labels, [0.5, 0.1, 1], by="word")
    assert found[0]["score"] == 0.75
    assert [one["text"] for one in spans("a b", [[0, 1], [1, 3]], ["X", "Y"], by="word")] == ["a", "b"]


def test_white_space_at_the_ends_of_tokens_is_in_no_span() -> None:
    assert spans("a  bc d", [[0, 1], [1, 5], [5, 7]], ["O", "X", "O"])[0] == {
        "text": "bc",
        "start": 3,
        "end": 5,
        "label": "X",
        "score": 1.0,
    }
    assert spans("a  ", [[1, 3]], ["X"]) == []


def test_offsets_of_another_text_fail_the_row() -> None:
    with pytest.raises(ValueError, match=r"a token ends at letter 9 of 3: offsets are those of another text"):
        spans("abc", [[0, 9]], ["X"])


@settings(max_examples=effort(30, 500))
@given(st.lists(st.tuples(st.sampled_from("BIELSUMO"), st.sampled_from(["PER", "LOC"])), max_size=12))
def test_spans_are_those_of_a_walk_over_all_pairs_of_neighbours(tags: list[tuple[str, str]]) -> None:
    labels = ["O" if mark == "O" else f"{mark}-{name}" for mark, name in tags]
    text = " ".join("ab" for _ in labels)
    borders = [
        place
        for place, ((before, last), (mark, name)) in enumerate(itertools.pairwise(tags), 1)
        if before in "OELSU" or mark in "OBSU" or name != last
    ]
    groups = [range(*pair) for pair in zip([0, *borders], [*borders, len(tags)], strict=True)] if tags else []
    wanted = [(tags[one[0]][1], 3 * one[0], 3 * one[-1] + 2) for one in groups if tags[one[0]][0] != "O"]
    found = spans(text, words(text) if labels else [], labels)
    assert [(one["label"], one["start"], one["end"]) for one in found] == wanted


def answers(start: list[float], end: list[float], mask: list[int] | None = None, **options: Any) -> list[Any]:
    text = " ".join("ab" for _ in start)
    values: dict[str, Any] = {"text": np.array([text], object), "offsets": np.array([words(text)], np.int64)}
    values |= {"start": np.array([start], np.float32), "end": np.array([end], np.float32)}
    values |= {} if mask is None else {"mask": np.array([mask], np.int64)}
    types = {**TYPES, "start": TYPES["scores"], "end": TYPES["scores"], "mask": TensorType("int64", (ROWS, None))}
    found, *_ = OPERATIONS["answers"].build(options, {name: types[name] for name in values})(values)
    return [(one["start"] // 3, one["end"] // 3, one["score"]) for one in found[0]]


@settings(max_examples=effort(30, 500))
@given(
    st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_answers_are_the_best_pairs_of_ends(tokens: list[tuple[float, float, bool]], longest: int, top: int) -> None:
    start, end, counts = (list(column) for column in zip(*tokens, strict=True))
    taken = [place for place, one in enumerate(counts) if one or not place]  # the first stands for no answer
    shares = []
    for scores in (start, end):
        powers = {place: np.exp(scores[place]) for place in taken}
        shares.append({place: power / sum(powers.values()) for place, power in powers.items() if counts[place]})
    pairs = {
        (first, last): shares[0][first] * shares[1][last]
        for first in shares[0]
        for last in shares[1]
        if first <= last < first + longest
    }
    found = answers(start, end, [int(one) for one in counts], longest=longest, top=top)
    best = sorted(pairs.values(), reverse=True)[:top]
    np.testing.assert_allclose([score for *_, score in found], best, rtol=1e-4)
    for first, last, score in found:
        assert pairs[first, last] == pytest.approx(score, rel=1e-4)


def letters(folder: Path, content: Any, text: str, **options: Any) -> tuple[list[int], list[int], list[list[int]]]:
    (folder / "letters.json").write_text(json.dumps(content))
    options = {"map": str(folder / "letters.json"), **options}
    OPERATIONS["letters"].infer(options, {"text": TYPES["text"]})
    made = OPERATIONS["letters"].build(options, {"text": TYPES["text"]})({"text": np.array([text], object)})
    ids, mask, offsets = (np.asarray(column)[0].tolist() for column in made)
    return ids, mask, offsets


def test_letters_have_the_ids_of_the_file(tmp_path: Path) -> None:
    known = {"a": 5, "b": 7, "é": 9}
    assert letters(tmp_path, known, "abé") == ([5, 7, 9], [1, 1, 1], [[0, 1], [1, 2], [2, 3]])
    assert letters(tmp_path, ["-", "a", "b"], "ba")[0] == [2, 1]
    around = letters(tmp_path, known, "ab", begin=[1], end=[2, 3], length=7, pad=4)
    assert around == ([1, 5, 7, 2, 3, 4, 4], [1] * 5 + [0, 0], [[0, 0], [0, 1], [1, 2], *[[0, 0]] * 4])
    assert letters(tmp_path, known, "abab", begin=[1], end=[2], length=4)[0] == [1, 5, 7, 2]
    assert letters(tmp_path, known, "axb", unknown=0)[0] == [5, 0, 7]
    with pytest.raises(ValueError, match=r"'x' is not in .*letters.json; give unknown letters an id"):
        letters(tmp_path, known, "axb")
    with pytest.raises(InapplicableError, match="begin and end are 2 ids, and length is 2: no letter fits"):
        letters(tmp_path, known, "a", begin=[1], end=[2], length=2)
    for wrong in ({"a": -1}, {"a": "b"}, 3, {}, [1]):
        with pytest.raises(ValueError, match="letter"):
            letters(tmp_path, wrong, "a")


def test_texts_are_joined() -> None:
    for by, wanted in (({}, ["a b", "c"]), ({"by": ""}, ["ab", "c"])):
        (made,) = OPERATIONS["join"].build(by, {"x": WORDS})({"x": [np.array(["a", "b"], object), ["c"]]})
        assert list(made) == wanted
