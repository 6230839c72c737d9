"""`log_mel: BANDS` — recordings [rows, samples] as their loudness in bands of mel, float32 [rows, bands, frames].

Frames of `size` samples begin every `hop` samples. With `pad: reflect` or `zeros`, the middle of the first one is the
first sample. Each is multiplied by a Hann window, its spectrum taken to the `power`, and put into bands of the `scale`
slaney or htk between the frequencies `low` and `high`; with `norm: slaney` bands have equal areas. `as` says what comes
of the sums: themselves (`power`), their logarithms `ln` or `log10` of at least `floor`, decibels `db` that are at most
80 below the loudest, or `whisper`: what Whisper takes, one frame less, from 8 below the loudest on.

Sources: librosa's feature.melspectrogram, filters.mel and power_to_db, and transformers' WhisperFeatureExtractor.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import (
    REALS,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    SizeConstraint,
    Solved,
    Types,
    forms,
)
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import TensorType
from ortdeploy.transforms.protocol import Apply, Options

WHISPER = "whisper"
_MOST = 2**20
_FRAMES = 2048
"""How many frames are transformed at a time."""


def _count(solved: Solved, types: Types) -> None:  # noqa: ARG001  the samples are solved
    """Compute the number of frames, and check the frequencies. Raises ContractError."""
    options, samples = CONTRACT.filled(solved.options), solved.size("samples")
    half = options["rate"] / 2
    if not options["low"] < options.get("high", half) <= half:
        raise ContractError(
            f"bands reach from {options['low']:g} to {options.get('high', half):g} Hz; of {options['rate']} samples a "
            f"second, they end at {half:g} Hz at most"
        )
    solved.sizes["frames"] = None if samples is None else _frames(samples, options)


def _frames(samples: int, options: Options) -> int:
    size, hop = int(options["size"]), int(options["hop"])
    padded = samples + (0 if options["pad"] == "none" else 2 * (size // 2))
    return max((padded - size) // hop + 1, 0) - (options["as"] == WHISPER and padded >= size)


CONTRACT = Contract(
    name="log_mel",
    meaning="Recordings as their loudness in bands of mel",
    inputs=(FormalParameter("x", "T", forms("rows samples"), "recordings of one channel", finite=True),),
    outputs=(FormalParameter("bands", "float32", forms("rows bands frames"), "the loudness of each band"),),
    attributes=(
        Attribute("log_mel", "INT", "how many bands", required=True, least=1, most=4096, binds=("bands",)),
        Attribute("rate", "INT", "samples a second", default=16000, least=1, most=10_000_000),
        Attribute("size", "INT", "the samples of a frame", default=400, least=2, most=_MOST),
        Attribute("hop", "INT", "from one frame to the next", default=160, least=1, most=_MOST),
        Attribute("scale", "STRING", "whose mel", default="slaney", choices=("slaney", "htk")),
        Attribute("norm", "STRING", "whether bands have equal areas", default="slaney", choices=("slaney", "none")),
        Attribute("low", "FLOAT", "the lowest frequency in Hz", default=0, least=0),
        Attribute("high", "FLOAT", "the highest one; by default half the rate", above=0),
        Attribute(
            "pad", "STRING", "what stands around the samples", default="reflect", choices=("reflect", "zeros", "none")
        ),
        Attribute("power", "FLOAT", "the power of the spectrum", default=2, above=0, most=4),
        Attribute(
            "as", "STRING", "what is made of the sums", default="log10", choices=("power", "ln", "log10", "db", WHISPER)
        ),
        Attribute("floor", "FLOAT", "the least sum of which a logarithm is taken", default=1e-10, above=0),
    ),
    types=(REALS,),
    sizes=(SizeConstraint("samples", least=1),),
    arithmetic=_count,
)


def build(options: Options, tensor: TensorType) -> Apply:  # noqa: ARG001  the same for every type
    filters, window = _filters(options), np.hanning(options["size"] + 1)[:-1]

    def apply(array: Array) -> tuple[Array, ...]:
        bands = [_logarithms(_sums(row, window, filters, options), options) for row in convert(array, "float64")]
        return (convert(np.stack(bands), "float32"),)

    return apply


class WhisperBands:
    """The bands of one recording as Whisper takes them, some frames at a time; the loudest of all counts for each."""

    def __init__(self, samples: Array, bands: int) -> None:
        """Find the loudest of the samples [samples], at least a second. Raises ValueError if some are no numbers."""
        self._samples = samples
        self._options = CONTRACT.filled({"log_mel": bands, "as": WHISPER})
        self._filters, self._window = _filters(self._options), np.hanning(self._options["size"] + 1)[:-1]
        self.frames = _frames(len(samples), self._options)
        pieces = (self._logarithms(begin, begin + _FRAMES) for begin in range(0, self.frames, _FRAMES))
        self._loudest = np.max([piece.max() for piece in pieces])
        if not np.isfinite(self._loudest):
            raise ValueError("some of its samples are NaN or infinite")

    def of(self, begin: int, end: int) -> Array:
        """Return the bands of the frames from `begin` to `end`, float32 [bands, frames]: fewer if it ends before."""
        return np.asarray(convert(_as_whisper(self._logarithms(begin, end), self._loudest), "float32"))

    def _logarithms(self, begin: int, end: int) -> Array:
        size, hop = self._options["size"], self._options["hop"]
        last = min(end, self.frames) - 1
        first_sample, end_sample = begin * hop - size // 2, last * hop + size - size // 2
        inside = self._samples[max(first_sample, 0) : end_sample]
        beyond = max(-first_sample, 0), max(end_sample - len(self._samples), 0)
        samples = np.pad(convert(inside, "float64"), beyond, mode="reflect")
        options = {**self._options, "pad": "none", "as": "log10"}
        return _logarithms(_sums(samples, self._window, self._filters, options), options)


def _sums(samples: Array, window: Array, filters: Array, options: Options) -> Array:
    """Return float64 [bands, frames] of the samples [samples] of one recording."""
    beside = options["size"] // 2
    if options["pad"] == "reflect":
        samples = np.pad(samples, beside, mode="reflect" if len(samples) > 1 else "edge")
    elif options["pad"] == "zeros":
        samples = np.pad(samples, beside)
    if len(samples) < options["size"]:
        return np.zeros((len(filters), 0))
    frames = sliding_window_view(samples, options["size"])[:: options["hop"]]
    found = []
    for begin in range(0, len(frames), _FRAMES):
        spectrum = np.abs(np.fft.rfft(frames[begin : begin + _FRAMES] * window)) ** options["power"]
        found.append(filters @ spectrum.T)
    return np.concatenate(found, axis=1)


_DECIBELS, _BELOW = 80, 8
"""How far below the loudest decibels go, and Whisper's logarithms."""


def _logarithms(sums: Array, options: Options) -> Array:
    """Return what is made of the sums [bands, frames] of one recording."""
    as_what = options["as"]
    if as_what == "power" or not sums.size:
        return sums
    held: Array = np.maximum(sums, float(options["floor"]))
    if as_what == "ln":
        return np.asarray(np.log(held))
    found: Array = np.log10(held)
    if as_what == "db":
        found *= 10
        return np.asarray(np.maximum(found, found.max() - _DECIBELS))
    if as_what == WHISPER:
        found = found[:, :-1]
        return _as_whisper(found, found.max(initial=-np.inf))
    return found


def _as_whisper(logarithms: Array, loudest: Any) -> Array:
    return np.asarray((np.maximum(logarithms, loudest - _BELOW) + 4) / 4)


def _filters(options: Options) -> Array:
    """Return the triangles of the bands, float64 [bands, frequencies]."""
    rate, bands = options["rate"], options["log_mel"]
    to_mel, to_hertz = (_htk, _from_htk) if options["scale"] == "htk" else (_slaney, _from_slaney)
    ends = to_mel(np.array([options["low"], options.get("high", rate / 2)], np.float64))
    corners = to_hertz(np.linspace(float(ends[0]), float(ends[1]), bands + 2))
    frequencies = np.fft.rfftfreq(options["size"], 1 / rate)
    widths, beside = np.diff(corners)[:, np.newaxis], frequencies - corners[:, np.newaxis]
    rising, falling = beside[:-2] / widths[:-1], -beside[2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    if options["norm"] == "slaney":
        triangles *= (2 / (corners[2:] - corners[:-2]))[:, np.newaxis]
    return np.asarray(triangles)


def _htk(hertz: Array) -> Array:
    """Return mels [n] of frequencies [n], as HTK counts them."""
    return np.asarray(2595 * np.log10(1 + hertz / 700))


def _from_htk(mels: Array) -> Array:
    """Return frequencies [n] of mels [n], as HTK counts them."""
    return np.asarray(700 * (10 ** (mels / 2595) - 1))


_LINEAR, _FIRST, _STEP = 200 / 3, 1000.0, np.log(6.4) / 27
"""Slaney's mels: how many Hz each has up to the first logarithmic one, and the logarithm of each step from there."""


def _slaney(hertz: Array) -> Array:
    """Return mels [n] of frequencies [n], as Slaney's Auditory Toolbox counts them."""
    return np.where(
        hertz < _FIRST, hertz / _LINEAR, _FIRST / _LINEAR + np.log(np.maximum(hertz, _FIRST) / _FIRST) / _STEP
    )


def _from_slaney(mels: Array) -> Array:
    """Return frequencies [n] of mels [n], as Slaney's Auditory Toolbox counts them."""
    first = _FIRST / _LINEAR
    return np.where(mels < first, mels * _LINEAR, _FIRST * np.exp(_STEP * (np.maximum(mels, first) - first)))
