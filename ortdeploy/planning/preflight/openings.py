"""Makes ONNX Runtime open a deployment's models without their weights, so that a refusal is known before the run.

A success is remembered in the state directory, if there is one, by everything that it depends on. A refusal is not
remembered, because a refused model never runs.
"""

import hashlib
import json
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ortdeploy.deployment.resolved import Deployment, ResolvedModel
from ortdeploy.facts.models import HOLE
from ortdeploy.facts.preflight import Opening
from ortdeploy.files.atomic import open_cached
from ortdeploy.files.json_text import read_json
from ortdeploy.files.opening import read_text
from ortdeploy.providers.catalogue import CPU
from ortdeploy.providers.options import with_texts
from ortdeploy.runtime.trial_opening import TrialRequest, try_to_open

_NAME = "opened-models.json"
_FORMAT_VERSION = 1
_MOST = 500  # models that are remembered


def open_models(
    deployment: Deployment, rejected: Collection[str], state_dir: Path, *, elsewhere: bool
) -> dict[str, Opening]:
    """Return the outcome of opening each model, by name; models with errors found by rules are left out.

    `elsewhere`: the plan is for another machine, whose kernels this one does not have.
    """
    models = [
        model
        for model in deployment.models
        if model.facts.problem is None and model.usable and model.spec.name not in rejected
    ]
    known = _Remembered(state_dir)
    found = {}
    unknown: dict[str, tuple[ResolvedModel, str]] = {}
    for model in models:
        key = _key(model, deployment, elsewhere=elsewhere)
        if key in known:
            found[model.spec.name] = Opening(with_kernels=_is_on_cpu(model, elsewhere=elsewhere))
        else:
            unknown[model.spec.name] = model, key
    tried = _try([model for model, _ in unknown.values()], deployment, elsewhere=elsewhere)
    found.update(tried)
    known.keep([unknown[name][1] for name, opening in tried.items() if opening.refusal is None])
    return found


def _try(models: Sequence[ResolvedModel], deployment: Deployment, *, elsewhere: bool) -> dict[str, Opening]:
    """Open models; nothing is proven if there is no disk space for their outlines."""
    if not models:
        return {}
    with ExitStack() as stack, suppress(OSError):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ortdeploy-")))
        sizes = [model.facts.outline.largest for model in models if model.facts.outline]
        with (folder / HOLE).open("wb") as hole:
            hole.truncate(max(sizes, default=0))
        requests = []
        for number, model in enumerate(models):
            path = folder / f"{number}.onnx"
            if model.facts.outline is not None:
                path.write_bytes(model.facts.outline.model)
            requests.append(_request(model, path, deployment, elsewhere=elsewhere))
        names = [model.spec.name for model in models]
        return {name: one for name, one in zip(names, try_to_open(requests), strict=True) if one is not None}
    return {}


def _request(model: ResolvedModel, outline: Path, deployment: Deployment, *, elsewhere: bool) -> TrialRequest:
    runtime = deployment.facts.runtime
    return TrialRequest(
        outline=str(outline) if model.facts.outline is not None else None,
        file=model.facts.path,
        on_cpu=_is_on_cpu(model, elsewhere=elsewhere),
        options=with_texts(model.session),
        extensions=model.facts.uses_extensions,
        domains=sorted({node.domain for node in model.facts.nodes if not node.local}),
        opsets=model.facts.opsets,
        elsewhere=runtime.version if elsewhere else None,
    )


def _is_on_cpu(model: ResolvedModel, *, elsewhere: bool) -> bool:
    """Return whether a session of the model is the CPU provider's alone, and this machine's."""
    return not elsewhere and any({one.name for one in session.chain} == {CPU} for session in model.usable)


def _key(model: ResolvedModel, deployment: Deployment, *, elsewhere: bool) -> str:
    """Return one digest of everything that an opening depends on."""
    depends = [
        model.facts.sha256,
        deployment.facts.runtime.version,
        with_texts(model.session),
        _is_on_cpu(model, elsewhere=elsewhere),
        elsewhere,
    ]
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()


class _Remembered:
    """The models that were opened before, remembered in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _NAME
        self._keys: list[str] = []
        with suppress(OSError, ValueError, KeyError, TypeError):
            document = read_json(read_text(self._path))
            if document["format_version"] == _FORMAT_VERSION:
                self._keys = [key for key in document["opened"] if isinstance(key, str)]

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keep(self, keys: Sequence[str]) -> None:
        """Remember more models; if they cannot be written, they are opened again the next time."""
        if keys and self._path.parent.is_dir():
            self._keys = [*self._keys, *keys][-_MOST:]
            text = json.dumps({"format_version": _FORMAT_VERSION, "opened": self._keys})
            with suppress(OSError), open_cached(self._path) as file:
                file.write(text.encode())
