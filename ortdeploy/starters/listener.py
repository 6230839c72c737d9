"""Models that hear a recording window by window and hand a state on, as Silero's voice activity detector does."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ortdeploy.manifest.write import flow, scalar
from ortdeploy.sources.catalogue import RECORDINGS
from ortdeploy.starters import provenance, samples, yaml_text
from ortdeploy.starters.model_info import Starter, Subject
from ortdeploy.starters.open_sizes import RATES
from ortdeploy.starters.provenance import Given, Page
from ortdeploy.tensors.types import Dimension

FAMILY = "a listener with state, as Silero's voice activity detector"
_NEXT = ("{}N", "{}n", "{}_out", "out_{}", "new_{}", "{}_new", "next_{}", "{}_next", "{}_n", "output_{}", "{}Out")
_SILERO_5 = "state"
"""The state of the versions of Silero VAD that take samples of before; earlier ones have h and c, and open windows."""
_WINDOW, _CONTEXT = 512, 64
_AUDIO_RANK = 2
_LINES = "a line for each window; start is in samples"
_BATCH = 4


def recognise(subject: Subject) -> Iterator[Starter]:
    """Yield a manifest that cuts recordings into windows, for a model with one input of samples and others of state."""
    states = _states(subject)
    rest = [one for one in subject.inputs if one.name not in states]
    heard = [one for one in rest if one.tensor.dtype == "float32" and len(one.tensor.shape or ()) == _AUDIO_RANK]
    rates = [one for one in rest if one.name in RATES and one.tensor.dtype == "int64"]
    given = [one.name for one in subject.facts.outputs if one.name not in states.values()]
    if not states or len(heard) != 1 or len(rest) != len(heard) + len(rates) or not given:
        return
    if subject.data is None or subject.data.format in RECORDINGS:
        fed = {heard[0].name: "$x"} | {one: f"${_word(one)}" for one in states}
        rated = {one.name: provenance.convention(one.name, samples.RATE, "Silero VAD's") for one in rates}
        made = {given[0]: "p"} | {after: f"{_word(one)}_after" for one, after in states.items()}
        _, fixed = heard[0].tensor.shape or (None, None)
        taken = ", ".join([flow(fed)[1:-1], *(f"{scalar(name)}: {rate}" for name, rate in rated.items())])
        yield _starter(subject, taken, made, tuple(states), _window(fixed, states))


def _states(subject: Subject) -> dict[str, str]:
    """Return the inputs that take what an output of nearly the same name gave, with that output."""
    outputs = {one.name for one in subject.facts.outputs}
    found = {}
    for value in subject.inputs:
        after = next((one.format(value.name) for one in _NEXT if one.format(value.name) in outputs), None)
        if after is not None and value.tensor.dtype == "float32":
            found[value.name] = after
    return found


class _Window(NamedTuple):
    """The new samples of a window, those of before, and what the manifest says of them."""

    size: int
    context: int
    told: str
    fixed: bool = False

    @property
    def written(self) -> Given:
        """The new samples of a window as the step names them."""
        if self.fixed:
            return provenance.graph("windows", self.size)
        return provenance.convention(f"windows of {self.size}", self.size, "Silero VAD's for 16 kHz")


def _window(fixed: Dimension, states: Collection[str]) -> _Window:
    """Return the window for a graph that takes a fixed number of samples, or any.

    A graph does not tell samples of before from new ones. Its size is that of Silero VAD, whatever its state is called.
    """
    if fixed == _WINDOW + _CONTEXT:
        of = f"The graph takes {fixed} samples, as Silero VAD for {samples.RATE} Hz"
        told = f"{of}: {_WINDOW} new ones and {_CONTEXT} of before; check this for another model."
        return _Window(_WINDOW, _CONTEXT, told)
    if isinstance(fixed, int):
        told = f"The graph takes windows of {fixed} samples. If some are of before, write context and less size."
        return _Window(fixed, 0, told, fixed=True)
    context = _CONTEXT if _SILERO_5 in states else 0
    before = f" and {context} of before" if context else ""
    text = f"Windows of {_WINDOW} samples{before} at {samples.RATE} Hz are those of Silero VAD for 16 kHz"
    return _Window(_WINDOW, context, f"{text}; check them for others.")


def _starter(
    subject: Subject,
    fed: str,
    made: Mapping[str, str],
    states: tuple[str, ...],
    window: _Window,
) -> Starter:
    """Return a manifest: `fed` is what the model is run with, as it is written, and `made` what it gives."""
    name, told = scalar(subject.name), window.told
    context = provenance.convention(f"context {window.context}", window.context, "samples of before; Silero VAD's")
    size, only = window.written, provenance.graph("squeeze", 0)
    handed_on = {_word(one): f"${_word(one)}_after" for one in states}
    steps = [
        f"{{run: {name}, in: {{{fed}}}, out: {flow(dict(made))}}}",
        "{do: flatten, in: {x: $p}, out: flat}",
        f"{{do: squeeze, in: {{x: $flat, squeeze: {only}}}, out: speech}}",
    ]
    lines = [
        f"{{do: windows, in: {{x: $samples, size: {size}, context: {context}}}, out: [w, start]}}",
        yaml_text.each("$w", "x", steps, {"speech": "speech"}, f"state: {flow(handed_on)}"),
    ]
    text = (
        yaml_text.head(
            f"A model that hears windows and hands on {', '.join(states)}, by the names of its inputs and outputs.",
            told,
        )
        + yaml_text.models(subject)
        + yaml_text.pipeline("listen", lines, {"start": "$start", "speech": "$speech"})
        + yaml_text.recordings_section(subject, "samples")
        + yaml_text.batch(None, _BATCH)
        + yaml_text.output(subject, "explode: [start, speech]", note=_LINES)
    )
    return Starter(family=FAMILY, page=Page(marked=text), files=yaml_text.sample_recording(subject), explodes=True)


def _word(name: str) -> str:
    """Return a name that a value of a pipeline may have."""
    return re.sub(r"\W", "_", name)
