"""Transformers that take tokens, beside their tokenizer.json: sentence encoders, text classifiers and rerankers."""

import json
from collections.abc import Iterator, Mapping

from ortdeploy.manifest.write import flow, scalar
from ortdeploy.starters import writing
from ortdeploy.starters.labels import Labels, find_labels
from ortdeploy.starters.subject import Starter, Subject, is_installed

_TOKENS = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}
_SENTENCES = ("The parcel arrived this morning.", "Where is my parcel?", "It rains in Berlin.", "A cat sleeps.")
_MOST = 512
_BATCH = 32
_FAR = 1_000_000
"""Longer than any text: how transformers writes that a tokenizer knows no bound."""


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest from text to what the model gives, if a tokenizer.json lies beside it."""
    names = {one.name for one in subject.inputs}
    tokenizer = subject.beside("tokenizer.json")
    if tokenizer is None or "input_ids" not in names or not names.issubset(_TOKENS) or not is_installed("tokenizers"):
        return
    for output, shape in subject.ran.outputs.items():
        if len(shape) in {2, 3}:
            yield _starter(subject, tokenizer, output, shape)
            return


def _starter(subject: Subject, tokenizer: str, output: str, shape: tuple[int, ...]) -> Starter:
    pairs = len(shape) == 2 and shape[1] == 1  # noqa: PLR2004  one score for a text: it is one of two texts
    labels = find_labels(subject, shape[-1]) if len(shape) == 2 and output == "logits" else None  # noqa: PLR2004
    steps, result, told = _ending(subject, shape, labels, pairs=pairs)
    name, length = scalar(subject.name), _length(subject)
    pair = ", pair: $pair" if pairs else ""
    lines = [
        f"{{do: tokenize, in: {{text: $text{pair}, tokenizer: {scalar(tokenizer)}, truncate: {length}}}, "
        "out: [ids, mask, types]}",
        *_casts(subject),
        f"{{run: {name}, in: {{{_fed(subject)}}}, out: {{{scalar(output)}: out}}}}",
        *steps,
    ]
    sample = f"{subject.stem}-sample.{'jsonl' if pairs else 'txt'}"
    text = (
        writing.head(f"{told}, with {tokenizer} beside it; texts are cut to {length} tokens.")
        + writing.models(subject)
        + writing.pipeline("read", lines, result)
        + "jobs:\n  run:\n    pipeline: read\n"
        + writing.input_section(subject, sample, "made by init", *_columns(subject, pairs=pairs), "key: [row]")
        + f"    batch: {{size: {_BATCH}}}\n"
        + writing.output(subject)
    )
    files = {} if subject.data else {sample: _sample(pairs=pairs).encode()}
    return Starter(family=told[0].lower() + told[1:], text=text, files=files | dict(labels.files if labels else {}))


def _ending(
    subject: Subject, shape: tuple[int, ...], labels: Labels | None, *, pairs: bool
) -> tuple[list[str], Mapping[str, str], str]:
    """Return the steps behind the model, what the pipeline gives, and what the model is."""
    if pairs:
        return ["{do: sigmoid, in: {x: $out}, out: score}"], {"score": "$score"}, "A reranker of pairs of texts"
    if labels is not None:
        steps = [
            "{do: softmax, in: {x: $out}, out: scores}",
            "{do: argmax, in: {x: $scores}, out: [class, probability]}",
            f"{{do: labels, in: {{x: $class, from: {scalar(labels.path)}}}, out: label}}",
        ]
        return steps, {"label": "$label", "probability": "$probability"}, f"A classifier of texts ({labels.told})"
    if len(shape) == 2 or "attention_mask" not in {one.name for one in subject.inputs}:  # noqa: PLR2004
        return ["{do: l2_normalize, in: {x: $out}, out: vector}"], {"vector": "$vector"}, "A sentence encoder"
    first = _pools_first(subject)
    pool = (
        "{op: Gather, in: {data: $out, indices: 0}, attributes: {axis: 1}, out: pooled}"
        if first
        else "{do: mean_pool, in: {x: $out, mask: $mask}, out: pooled}"
    )
    how = "its first token" if first else "the mean of its tokens"
    told = f"A sentence encoder whose vector is {how}"
    return [pool, "{do: l2_normalize, in: {x: $pooled}, out: vector}"], {"vector": "$vector"}, told


def _fed(subject: Subject) -> str:
    ends = {one.name: "" if one.tensor.dtype == "int64" else "_cast" for one in subject.inputs}
    return ", ".join(f"{scalar(name)}: ${_TOKENS[name]}{end}" for name, end in ends.items())


def _casts(subject: Subject) -> Iterator[str]:
    """Yield the steps that give tokens the element type that the model takes, if that is not int64."""
    for one in subject.inputs:
        if one.tensor.dtype != "int64":
            value = _TOKENS[one.name]
            yield f"{{do: cast, in: {{x: ${value}, cast: {one.tensor.dtype}}}, out: {value}_cast}}"


def _columns(subject: Subject, *, pairs: bool) -> Iterator[str]:
    """Yield which columns are the texts, if the user's files call them otherwise."""
    wanted = ("text", "pair") if pairs else ("text",)
    there = list(subject.data.columns) if subject.data else list(wanted)
    if not set(wanted).issubset(there) and len(there) >= len(wanted):
        yield f"columns: {flow(dict(zip(wanted, there, strict=False)))}"


def _sample(*, pairs: bool) -> str:
    if not pairs:
        return "".join(f"{one}\n" for one in _SENTENCES)
    return "".join(f"{json.dumps({'text': _SENTENCES[1], 'pair': one})}\n" for one in _SENTENCES)


def _length(subject: Subject) -> int:
    """Return how many tokens a text may have, as the files beside the model say."""
    found = [
        subject.settings("tokenizer_config.json").get("model_max_length"),
        subject.settings("config.json").get("max_position_embeddings"),
    ]
    known = [int(one) for one in found if isinstance(one, int | float) and 0 < one < _FAR]
    return min([*known, _MOST])


def _pools_first(subject: Subject) -> bool:
    return bool(subject.settings("1_Pooling/config.json").get("pooling_mode_cls_token"))
