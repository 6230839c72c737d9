"""Transformers that take tokens, beside their tokenizer.json: encoders, classifiers, rerankers, tags of tokens.

The names, ranks and symbols of the graph's outputs say which one it is, and config.json where it names the class. What
neither says is written as it is, and not called anything.
"""

import json
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import provenance, yaml_text
from ortdeploy.starters.labels import Labels, find_labels, named
from ortdeploy.starters.model_info import Starter, Subject, fixed_rows, is_installed
from ortdeploy.starters.provenance import Given, Page
from ortdeploy.tensors.types import Shape, format_shape

_TOKENS = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}
_SENTENCES = ("The parcel arrived this morning.", "Where is my parcel?", "It rains in Berlin.", "A cat sleeps.")
_MOST = 512
_BATCH = 32
_FAR = 1_000_000
"""Longer than any text: how transformers writes that a tokenizer knows no bound."""

_SCORES = re.compile(r"logits?|scores?|prob", re.IGNORECASE)
_VECTOR = re.compile(r"embed|pooler|pooled|vector", re.IGNORECASE)
_STATES = re.compile(r"hidden|token_embed", re.IGNORECASE)
"""What exporters call scores, the vector of a text, and those of its tokens."""

_ENDS = ("start_logits", "end_logits")
_OF_TEXT, _OF_TOKENS = 2, 3


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from text to what the model gives, if a tokenizer.json lies beside it."""
    names = {one.name for one in subject.inputs}
    tokenizer = subject.beside("tokenizer.json")
    if tokenizer is None or "input_ids" not in names or not names.issubset(_TOKENS) or not is_installed("tokenizers"):
        return
    reading = _reading(subject)
    if reading is not None:
        yield _starter(subject, tokenizer, reading)


class _Reading(Struct, frozen=True, kw_only=True):
    """What a model is, the outputs that are taken, with their values' names, the steps behind it, and what it gives.

    `by_token`: it gives something for each token, so texts are not filled up. `second` is the column that becomes the
    second text of a pair, after `first`.
    """

    told: str
    taken: Mapping[str, str]
    steps: tuple[str, ...]
    result: Mapping[str, str]
    by_token: bool = False
    first: str = "text"
    second: str | None = None
    labels: Labels | None = None
    question: str | None = None


def _reading(subject: Subject) -> _Reading | None:
    """Return how the model is read; None if it gives nothing that is by text or by token."""
    shapes = {name: subject.shape_of(name) for name in subject.ran.outputs}
    if all(len(shapes.get(name, ())) == _OF_TEXT for name in _ENDS):
        return _answers()
    ways = (_classes, _tags, _vector, _pooled)
    known = (way(subject, name, shape) for way in ways for name, shape in shapes.items())
    return next((one for one in known if one is not None), None) or _unknown(shapes)


def _scores(subject: Subject, name: str, task: str) -> bool:
    """Return whether an output is scores of a task: its name says so, or the class that config.json names."""
    return bool(_SCORES.search(name)) or any(one.endswith(task) for one in subject.architectures)


def _answers() -> _Reading:
    """Return what finds an answer in a text: how likely it begins and ends at each token."""
    longest = provenance.convention("answers of at most 15 tokens", "15", "transformers'")
    return _Reading(
        told="A model that finds answers in texts, by start_logits and end_logits [batch, tokens]",
        taken={"start_logits": "begins", "end_logits": "ends"},
        steps=(
            "{do: answers, in: {text: $pair, offsets: $where, start: $begins, end: $ends, mask: $of, "
            f"longest: {longest}}}, out: answers}}",
        ),
        result={"answers": "$answers"},
        by_token=True,
        first="question",
        second="context",
    )


def _classes(subject: Subject, name: str, shape: Shape) -> _Reading | None:
    """Return what classifies texts, or pairs of texts if it gives one score."""
    if len(shape) != _OF_TEXT or not isinstance(shape[1], int):
        return None
    if not _scores(subject, name, "ForSequenceClassification"):
        return None
    if shape[1] == 1:
        return _score(subject, name)
    labels = find_labels(subject, shape[1])
    told = f" ({labels.told})" if labels else f" of {shape[1]} classes, whose names no file has"
    return _Reading(
        told=f"A classifier of texts{told}",
        taken={name: "out"},
        steps=(*_best(subject, name), *named(labels, "class", "label")),
        result={"label": "$label", "probability": "$probability"}
        if labels
        else {"class": "$class", "probability": "$probability"},
        labels=labels,
    )


def _best(subject: Subject, name: str) -> Iterator[str]:
    """Yield the steps from scores to the best class and its probability."""
    scores = "out"
    if subject.settings("config.json").get("problem_type") == "multi_label_classification":
        yield str(provenance.beside("each label by itself", "{do: sigmoid, in: {x: $out}, out: scores}"))
        scores = "scores"
    elif subject.operator_of(name) != "Softmax":
        yield "{do: softmax, in: {x: $out}, out: scores}"
        scores = "scores"
    yield f"{{do: argmax, in: {{x: ${scores}}}, out: [class, probability]}}"


def _score(subject: Subject, name: str) -> _Reading:
    """Return what gives one score: for a pair of texts, as rerankers do, unless the user's rows are one text each."""
    sigmoid = "{do: sigmoid, in: {x: $out}, out: score}"
    step = str(provenance.convention("a score by sigmoid", sigmoid, "rerankers'"))
    if subject.data is not None and len(subject.data.columns) == 1:
        told = f"A model that gives one number for a text ({name})"
        return _Reading(told=told, taken={name: "out"}, steps=(), result={"number": "$out"}, question=_UNSAID)
    return _Reading(
        told="A reranker of pairs of texts",
        taken={name: "out"},
        steps=(step,),
        result={"score": "$score"},
        second="pair",
    )


_UNSAID = "Nothing says what its numbers mean, so they are given as they are"


def _tags(subject: Subject, name: str, shape: Shape) -> _Reading | None:
    """Return what scores each token."""
    if len(shape) != _OF_TOKENS or not isinstance(shape[2], int):
        return None
    if not _scores(subject, name, "ForTokenClassification"):
        return None
    labels = find_labels(subject, shape[2])
    if labels is not None and "O" in labels.names(subject):
        return _named_spans(subject, name, shape, labels)
    best = {"label": "$label"} if labels else {"class": "$class"}
    return _Reading(
        told=f"A classifier of tokens: {name} [batch, tokens, {shape[2]}]{f' ({labels.told})' if labels else ''}",
        taken={name: "out"},
        steps=(*_best(subject, name), *named(labels, "class", "label")),
        result={"where": "$where", **best, "probability": "$probability"},
        by_token=True,
        labels=labels,
        question="Each token gets its best class, and its place in the text: nothing says which of them make a span",
    )


def _named_spans(subject: Subject, name: str, shape: Shape, labels: Labels) -> _Reading:
    """Return what names spans of texts, by labels one of which is O, for tokens outside of them."""
    by = provenance.convention("a label for each token", "token", "transformers' strategy simple")
    found = f"{{text: $text, offsets: $where, labels: $label, scores: $probability, by: {by}}}"
    return _Reading(
        told=f"A model that names spans of texts: {name} [batch, tokens, {shape[2]}] ({labels.told})",
        taken={name: "out"},
        steps=(*_best(subject, name), *named(labels, "class", "label"), f"{{do: spans, in: {found}, out: spans}}"),
        result={"spans": "$spans"},
        by_token=True,
        labels=labels,
    )


def _vector(subject: Subject, name: str, shape: Shape) -> _Reading | None:
    """Return what gives one vector for a text."""
    if len(shape) != _OF_TEXT or not isinstance(shape[1], int) or not _VECTOR.search(name):
        return None
    others = (other for other in subject.ran.outputs if _is_of_states(other, subject.shape_of(other)))
    if "pool" in name and next(others, None) is not None:  # of BERT: made for pairs of sentences, not for their meaning
        return None
    return _Reading(told="A sentence encoder", taken={name: "out"}, steps=(_unit("out"),), result={"vector": "$vector"})


def _is_of_states(name: str, shape: Shape) -> bool:
    return len(shape) == _OF_TOKENS and isinstance(shape[2], int) and bool(_STATES.search(name))


def _pooled(subject: Subject, name: str, shape: Shape) -> _Reading | None:
    """Return what gives a vector for each token, of which one for the text is made."""
    settings = subject.settings("1_Pooling/config.json")
    if not _is_of_states(name, shape) and not (settings and len(shape) == _OF_TOKENS and isinstance(shape[2], int)):
        return None
    first = bool(settings.get("pooling_mode_cls_token"))
    if not first and "attention_mask" not in {one.name for one in subject.inputs}:
        return None
    pool = (
        "{op: Gather, in: {data: $out, indices: 0}, attributes: {axis: 1}, out: pooled}"
        if first
        else "{do: mean_pool, in: {x: $out, mask: $mask}, out: pooled}"
    )
    how = "its first token" if first else "the mean of its tokens"
    step = provenance.beside(how, pool) if settings else provenance.convention(how, pool, "sentence encoders'")
    return _Reading(
        told=f"A sentence encoder whose vector is {how}",
        taken={name: "out"},
        steps=(str(step), _unit("pooled")),
        result={"vector": "$vector"},
    )


def _unit(value: str) -> str:
    step = f"{{do: l2_normalize, in: {{x: ${value}}}, out: vector}}"
    return str(provenance.convention("vectors of length 1", step, "sentence encoders'"))


def _unknown(shapes: Mapping[str, Shape]) -> _Reading | None:
    """Return how outputs are given as they are, if all of them are by text or by token."""
    taken = {name: f"y{number}" for number, (name, shape) in enumerate(shapes.items()) if len(shape) >= _OF_TEXT}
    if not taken:
        return None
    by_token = any(size is None for name in taken for size in shapes[name][1:])
    listed = ", ".join(f"{name} {_in_words(shapes[name])}" for name in taken)
    result = {name if name.isidentifier() else value: f"${value}" for name, value in taken.items()}
    return _Reading(
        told=f"A model that takes texts and gives {listed}",
        taken=taken,
        steps=(),
        result=result | ({"where": "$where"} if by_token else {}),
        by_token=by_token,
        question=_UNSAID,
    )


def _in_words(shape: Shape) -> str:
    return format_shape(("batch", *("tokens" if size is None else size for size in shape[1:])))


def _starter(subject: Subject, tokenizer: str, reading: _Reading) -> Starter:
    name, length = scalar(subject.name), _length(subject)
    pairs = reading.second is not None
    taken = ", ".join(f"{scalar(output)}: {value}" for output, value in reading.taken.items())
    cut = "length" if _fixed_length(subject) else "truncate"
    by = provenance.beside("tokenizer", scalar(tokenizer))
    lines = [
        f"{{do: tokenize, in: {{text: $text{_pair(reading)}, tokenizer: {by}, "
        f"{cut}: {length}{_unfilled(reading, cut)}}}, out: [ids, mask, types{_places(reading)}]}}",
        *_casts(subject),
        f"{{run: {name}, in: {{{_fed(subject)}}}, out: {{{taken}}}}}",
        *reading.steps,
    ]
    sample = f"{subject.stem}-sample.{'jsonl' if pairs else 'txt'}"
    text = (
        yaml_text.head(f"{reading.told}, with {tokenizer} beside it; texts are cut to {length.text} tokens.")
        + yaml_text.models(subject)
        + yaml_text.pipeline("read", lines, reading.result)
        + yaml_text.input_section(subject, sample, *_columns(subject, reading), "key: [row]")
        + yaml_text.batch(fixed_rows(subject.inputs[0]), _BATCH)
        + yaml_text.output(subject)
    )
    files = {} if subject.data else {sample: _sample(reading).encode()}
    labels = dict(reading.labels.files) if reading.labels else {}
    family = reading.told[0].lower() + reading.told[1:]
    return Starter(family=family, page=Page(marked=text), files=files | labels, question=reading.question)


def _places(reading: _Reading) -> str:
    if not reading.by_token:
        return ""
    return ", where, of" if reading.second else ", where"


def _pair(reading: _Reading) -> str:
    if reading.second is None:
        return ""
    if reading.first == "question":
        return f", pair: {provenance.graph('pair', '$pair')}"
    return (
        f", pair: {provenance.convention('a row is a pair of texts', '$pair', 'one score says that it is a reranker')}"
    )


def _unfilled(reading: _Reading, cut: str) -> str:
    """Return the settings for what is by token: its place in the text, and no tokens behind it if the graph permits."""
    if not reading.by_token:
        return ""
    padding = "" if cut == "length" else f", padding: {provenance.graph('padding', 'none')}"
    return f"{padding}, offsets: {provenance.graph('offsets', 'characters')}"


def _fed(subject: Subject) -> str:
    ends = {one.name: "" if one.tensor.dtype == "int64" else "_cast" for one in subject.inputs}
    return ", ".join(f"{scalar(name)}: ${_TOKENS[name]}{end}" for name, end in ends.items())


def _casts(subject: Subject) -> Iterator[str]:
    """Yield the steps that give tokens the element type that the model takes, if that is not int64."""
    for one in subject.inputs:
        if one.tensor.dtype != "int64":
            value, dtype = _TOKENS[one.name], provenance.graph("cast", one.tensor.dtype)
            yield f"{{do: cast, in: {{x: ${value}, cast: {dtype}}}, out: {value}_cast}}"


def _columns(subject: Subject, reading: _Reading) -> Iterator[str]:
    """Yield which columns are the texts, if the user's files call them otherwise."""
    called = {"text": reading.first} | ({"pair": reading.second} if reading.second else {})
    there = list(subject.data.columns) if subject.data else list(called.values())
    if set(called).issubset(there):
        return
    if set(called.values()).issubset(there):
        yield f"columns: {provenance.graph('columns', flow(called))}"
    elif len(there) >= len(called):
        columns = flow(dict(zip(called, there, strict=False)))
        if len(there) == len(called):
            yield f"columns: {provenance.convention('columns', columns, 'in the order of the file')}"
        else:
            because = f"it takes {' and '.join(called)}, and the file has {', '.join(there)}"
            yield f"columns: {provenance.made_up('columns', columns, because, 'the columns that are the texts')}"


def _sample(reading: _Reading) -> str:
    if reading.second is None:
        return "".join(f"{one}\n" for one in _SENTENCES)
    rows = ({reading.first: _SENTENCES[1], reading.second: one} for one in _SENTENCES)
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _fixed_length(subject: Subject) -> int | None:
    """Return how many tokens each text must have, if the graph fixes it."""
    size = (next(one for one in subject.inputs if one.name == "input_ids").tensor.shape or ())[1:2]
    return size[0] if size and isinstance(size[0], int) else None


def _length(subject: Subject) -> Given:
    """Return how many tokens a text may have: as the graph says, or the files beside the model."""
    fixed = _fixed_length(subject)
    if fixed is not None:
        return provenance.graph("length", fixed)
    found = [
        subject.settings("tokenizer_config.json").get("model_max_length"),
        subject.settings("config.json").get("max_position_embeddings"),
    ]
    known = [int(one) for one in found if isinstance(one, int | float) and 0 < one < _FAR]
    if known and min(known) <= _MOST:
        return provenance.beside("truncate", min(known))
    return provenance.convention(f"truncate {_MOST}", _MOST, "longer texts are cut")
