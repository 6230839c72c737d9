"""`ortdeploy adapter`: show an adapter, compare it with a model, or convert one from another format."""

import argparse
import sys
from pathlib import Path

from ortdeploy.adapters.file import read_adapter
from ortdeploy.cli.commands.shared import named_model, need_file
from ortdeploy.cli.exit_codes import EXIT_OK, EXIT_REJECTED
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.models import AdapterFacts, ModelFacts, ParameterFacts
from ortdeploy.files.names import is_there
from ortdeploy.rules.adapter_mismatch import adapter_problems
from ortdeploy.views import json, text


def run(arguments: argparse.Namespace) -> int:
    """Show, fit or convert, as the arguments say."""
    return {"show": _show, "fit": _fit, "convert": _convert}[arguments.action](arguments)


def _show(arguments: argparse.Namespace) -> int:
    adapter = _adapter(arguments.file)
    sys.stdout.write(json.render_adapter(adapter) if arguments.format == "json" else text.render_adapter(adapter))
    return EXIT_OK


def _fit(arguments: argparse.Namespace) -> int:
    """Print the problems that keep an adapter from fitting a model; an empty list means that it fits."""
    adapter, model = _adapter(arguments.file), named_model(arguments.model)
    problems = tuple(adapter_problems(adapter, model))
    missing = _left_out(adapter, model)
    if arguments.format == "json":
        sys.stdout.write(json.render_fit(problems, missing))
    elif problems or not arguments.quiet:
        sys.stdout.write(text.render_fit(arguments.file, arguments.model, problems, missing))
    return EXIT_REJECTED if problems else EXIT_OK


def _convert(arguments: argparse.Namespace) -> int:
    """Convert an adapter of another format into an ONNX Runtime adapter file."""
    from ortdeploy.adapters.convert import convert  # noqa: PLC0415  only to convert
    from ortdeploy.adapters.training_formats import read_weights  # noqa: PLC0415
    from ortdeploy.runtime.adapter_writer import write_adapter  # noqa: PLC0415

    target = Path(arguments.output)
    if is_there(target):
        raise OrtdeployError(f"{target} is there already and is not overwritten; choose another name with -o")
    model = named_model(arguments.model)
    arrays = convert(read_weights(Path(arguments.source), arguments.alpha), model, arguments.map)
    if not arrays:
        raise OrtdeployError(f"{arguments.source} holds no matrices")
    parameters = (ParameterFacts(name=n, dtype=a.dtype.name, shape=a.shape) for n, a in arrays.items())
    candidate = AdapterFacts(path=str(target), parameters=tuple(parameters))
    problems = list(adapter_problems(candidate, model))
    if problems:
        raise OrtdeployError(f"{arguments.source} does not fit {arguments.model}: {' '.join(problems)}".rstrip("."))
    versions = {"adapter_version": arguments.adapter_version, "model_version": arguments.model_version}
    write_adapter(target, arrays, **versions)
    written = _adapter(str(target))
    sys.stdout.write("" if arguments.quiet else text.render_adapter(written))
    return EXIT_OK


def _adapter(path: str) -> AdapterFacts:
    need_file(path)
    facts = read_adapter(Path(path), path)
    if facts.problem is not None:
        raise OrtdeployError(facts.problem.detail.rstrip("."))
    return facts


def _left_out(adapter: AdapterFacts, model: ModelFacts) -> tuple[str, ...]:
    """Return the model's inputs with defaults for which the adapter has no values."""
    given = {one.name for one in adapter.parameters}
    return tuple(value.name for value in model.inputs if value.optional and value.name not in given)
