"""Deterministic schedulers of diffusion models, from the papers' formulas.

Latents are the small image that a model denoises: float64 [rows, channels, height / 8, width / 8]. So are the model's
outputs, and the images and noise that follow from them. Times, noise levels and alphas are float64, [calls] or
[training steps].

Names of settings are those of diffusers' scheduler_config.json. Sources:

- DDIM: Song, Meng, Ermon, Denoising Diffusion Implicit Models, 2020, equation 12 with eta = 0.
- PNDM: Liu, Ren, Lin, Zhao, Pseudo Numerical Methods for Diffusion Models on Manifolds, 2022, equations 9, 11 and 12,
  begun with two calls at the second time instead of Runge-Kutta steps.
- Euler and Heun: Karras, Aittala, Aila, Laine, Elucidating the Design Space of Diffusion-Based Generative Models, 2022,
  algorithm 1 without churn; its equation 5 gives the Karras noise levels.
- LMS: the linear multistep method of Adams and Bashforth over the same noise levels.
- DPM-Solver++ 2M: Lu, Zhou, Bao, Chen, Li, Zhu, DPM-Solver++, 2022, algorithm 2.
- UniPC: Zhao, Bai, Rao, Zhou, Lu, UniPC: A Unified Predictor-Corrector Framework, 2023, algorithms 5 and 6.
- v-prediction: Salimans, Ho, Progressive Distillation for Fast Sampling of Diffusion Models, 2022, appendix D.
- The cosine schedule: Nichol, Dhariwal, Improved Denoising Diffusion Probabilistic Models, 2021, equation 17.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ortdeploy.tensors.columns import Array

_KARRAS_RHO = 7.0
_SMALL_SIGMA = 1e-10
_FEW_STEPS = 15  # below, DPM-Solver++ ends with a step of order one


class Scheduler(Protocol):
    """One way from noise to an image, used once. `scale` comes before the model, `step` after it.

    `latents` and `output` are float64 [rows, channels, height / 8, width / 8], and so is what both methods return.
    `index` is that of the call of the model, in `timesteps`.
    """

    timesteps: Array
    """The times at which the model is asked, in order: float64 [calls]."""

    first_scale: float = 1.0
    """What the starting noise is multiplied with."""

    def scale(self, latents: Array, index: int) -> Array:  # noqa: ARG002  the same at all times
        """Return what the model gets instead of the latents: if they keep their variance, the latents."""
        return latents

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Return the latents after the model has answered."""


class _Noise:
    """The noise of a training process: `alphas` are the cumulated products, `sigmas` noise over signal.

    Both are float64 [training steps]; `latents` and `output` are float64 [rows, channels, height / 8, width / 8].
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.steps = int(config["num_train_timesteps"])
        self.alphas = np.cumprod(1.0 - _betas(config, self.steps))
        self.sigmas = np.sqrt((1 - self.alphas) / self.alphas)
        self.kind = config["prediction_type"]

    def parts(self, latents: Array, output: Array, alpha: float) -> tuple[Array, Array]:
        """Return the image and the noise that the model's output says the latents are made of."""
        signal, noise = math.sqrt(alpha), math.sqrt(1 - alpha)
        if self.kind == "epsilon":
            return (latents - noise * output) / signal, output
        if self.kind == "v_prediction":
            return signal * latents - noise * output, signal * output + noise * latents
        return output, (latents - signal * output) / noise

    def image(self, latents: Array, output: Array, sigma: float) -> Array:
        """Return the image that latents of a noise level hold, in the scale in which the signal is one."""
        if self.kind == "epsilon":
            return latents - sigma * output
        if self.kind == "v_prediction":
            return np.asarray(latents / (sigma**2 + 1) - output * (sigma / math.sqrt(sigma**2 + 1)))
        return output


def _betas(config: Mapping[str, Any], steps: int) -> Array:
    """Return how much noise each training step adds, float64 [steps]."""
    first, last = float(config["beta_start"]), float(config["beta_end"])
    match config["beta_schedule"]:
        case "linear":
            return np.linspace(first, last, steps)
        case "scaled_linear":
            return np.linspace(math.sqrt(first), math.sqrt(last), steps) ** 2
    times = np.arange(steps + 1, dtype=np.float64) / steps
    kept: Array = np.cos((times + 0.008) / 1.008 * math.pi / 2) ** 2
    betas: Array = np.minimum(1 - kept[1:] / kept[:-1], 0.999)
    return betas


def _times(config: Mapping[str, Any], count: int, *, inner: bool, whole: bool) -> Array:
    """Return the times of a spacing, the latest first, float64 [count]; `inner`: the last of one more is left out."""
    total = int(config["num_train_timesteps"])
    match config["timestep_spacing"]:
        case "linspace":
            times = np.linspace(0, total - 1, count + 1)[::-1][:-1] if inner else np.linspace(0, total - 1, count)[::-1]
            return np.round(times) if whole else times
        case "leading":
            ratio = total // (count + 1) if inner else total // count
            times = np.arange(count + inner, dtype=np.float64) * ratio
            return (times[::-1][:-1] if inner else times[::-1]) + float(config["steps_offset"])
    return np.round(np.arange(total, 0, -total / count))[:count] - 1


def _sigmas(config: Mapping[str, Any], noise: _Noise, times: Array, *, whole: bool) -> tuple[Array, Array]:
    """Return noise levels and times, float64 [times] each: those of the times, or as Karras et al. space them."""
    sigmas = np.interp(times, np.arange(noise.steps), noise.sigmas)
    if not config["use_karras_sigmas"]:
        return sigmas, times
    high, low = (noise.sigmas[-1], noise.sigmas[0]) if whole else (sigmas[0], sigmas[-1])
    ramp = np.linspace(0, 1, len(times))
    high, low = high ** (1 / _KARRAS_RHO), low ** (1 / _KARRAS_RHO)
    sigmas = (high + ramp * (low - high)) ** _KARRAS_RHO
    logs = np.log(np.maximum(sigmas, _SMALL_SIGMA))
    times = np.interp(logs, np.log(noise.sigmas), np.arange(noise.steps))
    return sigmas, np.round(times) if whole else times


class _OverTimes(Scheduler):
    """What the schedulers have in common that go from one time of the training to another."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        self._noise = _Noise(config)
        self.timesteps = _times(config, count, inner=False, whole=True)
        self._stride = self._noise.steps // count
        self._last = 1.0 if config["set_alpha_to_one"] else float(self._noise.alphas[0])

    def _alpha(self, time: int) -> float:
        return float(self._noise.alphas[time]) if time >= 0 else self._last


class Ddim(_OverTimes):
    """Denoising diffusion implicit models, without noise of its own."""

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Go from one time to the one before it along the direction of the noise."""
        time = int(self.timesteps[index])
        before = self._alpha(time - self._stride)
        image, noise = self._noise.parts(latents, output, float(self._noise.alphas[time]))
        return math.sqrt(before) * image + math.sqrt(1 - before) * noise


class Pndm(_OverTimes):
    """Pseudo linear multistep: the noise of up to four times, weighted as Adams and Bashforth do."""

    _WEIGHTS = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        """Take the settings and the number of steps; the model is asked once more than that."""
        super().__init__(config, count)
        times = self.timesteps
        self.timesteps = np.concatenate([times[:1], times[1:2], times[1:]]) if count > 1 else times
        self._outputs: list[Array] = []
        self._first: Array | None = None

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Take the step again that was the first, with the mean of two outputs; then go on from several."""
        time = int(self.timesteps[index])
        before = time - self._stride
        if index == 1:
            before, time = time, time + self._stride
            output = (output + self._outputs[-1]) / 2
            latents = latents if self._first is None else self._first
        else:
            self._outputs = [*self._outputs[-3:], output]
            weights = self._WEIGHTS[len(self._outputs) - 1]
            output = sum(w * one for w, one in zip(weights, reversed(self._outputs), strict=True))  # type: ignore[assignment]
        if index == 0:
            self._first = latents
        return self._go(latents, self._alpha(time), self._alpha(before), output)

    def _go(self, latents: Array, alpha: float, before: float, output: Array) -> Array:
        """Return equation 11 of the paper."""
        if self._noise.kind == "v_prediction":
            output = math.sqrt(alpha) * output + math.sqrt(1 - alpha) * latents
        divisor = alpha * math.sqrt(1 - before) + math.sqrt(alpha * (1 - alpha) * before)
        return math.sqrt(before / alpha) * latents - (before - alpha) / divisor * output


class _OverSigmas(Scheduler):
    """What the schedulers have in common that go from noise level to noise level, float64 [steps + 1].

    `latents` and `output` are float64 [rows, channels, height / 8, width / 8].
    """

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        self._noise = _Noise(config)
        times = _times(config, count, inner=False, whole=False)
        sigmas, times = _sigmas(config, self._noise, times, whole=False)
        self._sigmas = np.append(sigmas, 0.0)
        self.timesteps = times
        highest = float(self._sigmas.max())
        leading = config["timestep_spacing"] == "leading"
        self.first_scale = math.sqrt(highest**2 + 1) if leading else highest

    def scale(self, latents: Array, index: int) -> Array:
        """Return latents whose signal and noise have a variance of one together."""
        return latents / math.sqrt(float(self._sigmas[index]) ** 2 + 1)

    def _slope(self, latents: Array, index: int, output: Array) -> Array:
        sigma = float(self._sigmas[index])
        return (latents - self._noise.image(latents, output, sigma)) / sigma


class Euler(_OverSigmas):
    """Straight steps."""

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Go along the slope to the next noise level."""
        return latents + self._slope(latents, index, output) * float(self._sigmas[index + 1] - self._sigmas[index])


class Lms(_OverSigmas):
    """The slopes of up to four noise levels, each weighted with the integral of its Lagrange polynomial."""

    _ORDER = 4

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        super().__init__(config, count)
        self._slopes: list[Array] = []

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Go along the polynomial through the last slopes."""
        self._slopes = [self._slope(latents, index, output), *self._slopes[: self._ORDER - 1]]
        known = self._sigmas[index - len(self._slopes) + 1 : index + 1][::-1]
        return latents + sum(self._weight(known, place, index) * slope for place, slope in enumerate(self._slopes))

    def _weight(self, known: Array, place: int, index: int) -> float:
        """Integrate the polynomial that is one at one of the `known` noise levels [levels] and zero at the others."""
        others = np.delete(known, place)
        integral = np.poly1d(others, r=True).integ() / np.prod(known[place] - others)
        return float(integral(self._sigmas[index + 1]) - integral(self._sigmas[index]))


class Heun(_OverSigmas):
    """Each step is taken twice: along the slope at its beginning, then along the mean of both ends'."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        """Take the settings and the number of steps; the model is asked twice for each but the last."""
        super().__init__(config, count)
        times = self.timesteps
        self.timesteps = np.concatenate([times[:1], np.repeat(times[1:], 2)])
        self._begin: tuple[Array, Array] | None = None

    def scale(self, latents: Array, index: int) -> Array:
        """Return latents as the model takes them at the noise level of this call."""
        return super().scale(latents, (index + 1) // 2)

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Go ahead, and once more with both slopes."""
        level = (index + 1) // 2
        slope = self._slope(latents, level, output)
        if self._begin is None:
            self._begin = (latents, slope) if self._sigmas[level + 1] > 0 else None
            return latents + slope * float(self._sigmas[level + 1] - self._sigmas[level])
        start, first = self._begin
        self._begin = None
        return start + (first + slope) / 2 * float(self._sigmas[level] - self._sigmas[level - 1])


class _OverLambdas(Scheduler):
    """What the exponential integrators have in common: signal, noise and half the log of their ratio at each level.

    These are float64 [steps + 1]; `latents` and `output` are float64 [rows, channels, height / 8, width / 8].
    """

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        self._noise = _Noise(config)
        times = _times(config, count, inner=True, whole=True)
        sigmas, times = _sigmas(config, self._noise, times, whole=True)
        last = 0.0 if config["final_sigmas_type"] == "zero" else float(self._noise.sigmas[0])
        sigmas = np.append(sigmas, last)
        self.timesteps = times
        self._alphas = 1 / np.sqrt(sigmas**2 + 1)
        self._noises = sigmas * self._alphas
        with np.errstate(divide="ignore"):
            self._lambdas = -np.log(sigmas)
        self._count = len(times)

    def _image(self, latents: Array, index: int, output: Array) -> Array:
        return self._noise.parts(latents, output, float(self._alphas[index]) ** 2)[0]


class DpmSolver(_OverLambdas):
    """DPM-Solver++ of order two: the images of two times."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        super().__init__(config, count)
        small = config["lower_order_final"] and self._count < _FEW_STEPS
        self._ends_plain = config["euler_at_final"] or small or config["final_sigmas_type"] == "zero"
        self._order = int(config["solver_order"])
        self._before: Array | None = None

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Integrate the exponential exactly, the image as a line through the last two."""
        image = self._image(latents, index, output)
        width = float(self._lambdas[index + 1] - self._lambdas[index])
        first_order = self._before is None or self._order == 1 or (index == self._count - 1 and self._ends_plain)
        toward = image
        if not first_order and self._before is not None:
            ratio = float(self._lambdas[index] - self._lambdas[index - 1]) / width
            toward = image + (image - self._before) / (2 * ratio)
        self._before = image
        kept = float(self._noises[index + 1] / self._noises[index])
        return kept * latents - float(self._alphas[index + 1]) * math.expm1(-width) * toward


class UniPc(_OverLambdas):
    """The unified predictor-corrector: each answer of the model corrects the step that led to it."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        super().__init__(config, count)
        self._order, self._plain_end = int(config["solver_order"]), bool(config["lower_order_final"])
        self._bh1 = config["solver_type"] == "bh1"
        self._uncorrected = set(config["disable_corrector"])
        self._images: list[Array] = []
        self._start: Array | None = None
        self._taken = 0

    def step(self, latents: Array, index: int, output: Array) -> Array:
        """Correct where the last step went with this image, then take the next."""
        image = self._image(latents, index, output)
        if self._start is not None and index - 1 not in self._uncorrected:
            latents = self._go(self._start, index - 1, self._taken, image)
        self._images = [*self._images, image][-self._order :]
        order = min(self._order, self._count - index) if self._plain_end else self._order
        self._taken, self._start = min(order, len(self._images)), latents
        return self._go(latents, index, self._taken, None)

    def _go(self, latents: Array, index: int, order: int, answer: Array | None) -> Array:
        """Step from one level to the next; with the model's answer there, as the corrector does."""
        image = self._images[-1]
        width = float(self._lambdas[index + 1] - self._lambdas[index])
        ratios = [float(self._lambdas[index - back] - self._lambdas[index]) / width for back in range(1, order)]
        slopes = [(self._images[-1 - back] - image) / ratio for back, ratio in enumerate(ratios, 1)]
        grown = math.expm1(-width)
        weight = -width if self._bh1 else grown
        matrix, right = _conditions([*ratios, 1.0], order, -width, weight)
        if answer is None:
            weights = _predictor_weights(matrix, right, order)
        else:
            weights = [0.5] if order == 1 else list(np.linalg.solve(matrix, right))
            slopes = [*slopes, answer - image]
        alpha = float(self._alphas[index + 1])
        made = float(self._noises[index + 1] / self._noises[index]) * latents - alpha * grown * image
        for share, slope in zip(weights, slopes, strict=True):
            made = made - alpha * weight * float(share) * slope
        return made


def _conditions(ratios: Sequence[float], order: int, width: float, weight: float) -> tuple[Array, Array]:
    """Return the equations that the weights of slopes solve, float64 [order, order] and [order].

    They are powers of the ratios, and the phi functions.
    """
    phi, factorial = (math.expm1(width) / width - 1 if math.isfinite(width) else -1.0), 1
    powers, right = [], []
    for power in range(1, order + 1):
        powers.append([ratio ** (power - 1) for ratio in ratios])
        right.append(phi * factorial / weight)
        factorial *= power + 1
        phi = (phi / width if math.isfinite(width) else 0.0) - 1 / factorial
    return np.array(powers), np.array(right)


def _predictor_weights(matrix: Array, right: Array, order: int) -> list[float]:
    if order == 1:
        return []
    if order == 2:  # noqa: PLR2004  the paper's closed form
        return [0.5]
    return list(np.linalg.solve(matrix[:-1, :-1], right[:-1]))


_COMMON: dict[str, Any] = {
    "num_train_timesteps": 1000, "beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear",
    "prediction_type": "epsilon", "steps_offset": 0, "use_karras_sigmas": False, "set_alpha_to_one": True,
    "final_sigmas_type": "zero", "lower_order_final": True, "euler_at_final": False, "solver_order": 2,
    "disable_corrector": [],
}  # fmt: skip
SCHEDULERS: dict[str, tuple[Callable[[Mapping[str, Any], int], Scheduler], dict[str, Any]]] = {
    "DDIMScheduler": (Ddim, {"timestep_spacing": "leading"}),
    "PNDMScheduler": (Pndm, {"timestep_spacing": "leading", "set_alpha_to_one": False}),
    "EulerDiscreteScheduler": (Euler, {"timestep_spacing": "linspace"}),
    "LMSDiscreteScheduler": (Lms, {"timestep_spacing": "linspace"}),
    "HeunDiscreteScheduler": (Heun, {"timestep_spacing": "linspace", "beta_start": 0.00085, "beta_end": 0.012}),
    "DPMSolverMultistepScheduler": (DpmSolver, {"timestep_spacing": "linspace"}),
    "UniPCMultistepScheduler": (UniPc, {"timestep_spacing": "linspace", "solver_type": "bh2"}),
}
"""The schedulers by the names that diffusers gives them, with the settings whose defaults are their own."""

_BETAS, _SPACINGS = ("linear", "scaled_linear", "squaredcos_cap_v2"), ("linspace", "leading", "trailing")
_KINDS = ("epsilon", "v_prediction", "sample")
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "beta_schedule": _BETAS, "timestep_spacing": _SPACINGS, "prediction_type": _KINDS, "thresholding": (False,),
    "rescale_betas_zero_snr": (False,), "use_exponential_sigmas": (False,), "use_beta_sigmas": (False,),
    "use_flow_sigmas": (False,), "use_lu_lambdas": (False,), "final_sigmas_type": ("zero", "sigma_min"),
    "interpolation_type": ("linear",), "algorithm_type": ("dpmsolver++",), "predict_x0": (True,),
    "trained_betas": (None,), "timestep_type": ("discrete",), "sigma_min": (None,), "sigma_max": (None,),
    "variance_type": (None, "fixed_small"), "solver_p": (None,), "use_dynamic_shifting": (False,),
    "lambda_min_clipped": (-math.inf, "-Infinity"), "use_corrector": (True,),
}  # fmt: skip
_OF_CLASS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("PNDMScheduler", "skip_prk_steps"): (True,),
    ("PNDMScheduler", "prediction_type"): ("epsilon", "v_prediction"),
    ("DPMSolverMultistepScheduler", "solver_type"): ("midpoint",),
    ("DPMSolverMultistepScheduler", "solver_order"): (1, 2),
    ("UniPCMultistepScheduler", "solver_type"): ("bh1", "bh2"),
    ("UniPCMultistepScheduler", "solver_order"): (1, 2, 3),
    ("EulerDiscreteScheduler", "final_sigmas_type"): ("zero",),
}
_REQUIRED = {"PNDMScheduler": {"skip_prk_steps": False}}


def read_scheduler(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the settings of a scheduler_config.json with defaults, or what of them is not supported.

    As diffusers' pipelines do when they load one, `steps_offset` becomes 1 and `clip_sample` False.
    """
    name = str(config.get("_class_name"))
    if name not in SCHEDULERS:
        return {}, f"its scheduler is {name}; supported are {', '.join(SCHEDULERS)}"
    for key, value in {**_REQUIRED.get(name, {}), **config}.items():
        allowed = _OF_CLASS.get((name, key)) or _ALLOWED.get(key)
        if allowed is not None and value not in allowed:
            options = ", ".join(map(str, allowed))
            return {}, f"its scheduler {name} says {key}: {value}; supported is {options}"
    known = {
        key: value for key, value in config.items() if key in _COMMON or key in {"timestep_spacing", "solver_type"}
    }
    return {**_COMMON, **SCHEDULERS[name][1], **known, "steps_offset": 1, "_class_name": name}, None


def make_scheduler(config: Mapping[str, Any], count: int) -> Scheduler:
    """Return the scheduler for settings that `read_scheduler` has accepted, and a number of steps."""
    return SCHEDULERS[config["_class_name"]][0](config, count)
