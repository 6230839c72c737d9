"""The child of `ortdeploy doctor`: tries one provider, whose crash ends only this process."""

from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import to_builtins

from ortdeploy.cli.output.streams import private_streams
from ortdeploy.plan.plan_file import decode
from ortdeploy.plan.steps import PlannedProvider
from ortdeploy.process.child import Asked
from ortdeploy.sessions.generated_models import make_model
from ortdeploy.sessions.opening import ModelOpener
from ortdeploy.sessions.provider_trial import run_trial, trial_step


def main(asked: Asked) -> None:
    """Try the provider of the request."""
    from ortdeploy.runtime.session import OrtRuntime  # noqa: PLC0415  importing may print

    native = asked.native_output()
    with private_streams(), native.taking(), TemporaryDirectory() as folder:
        runtime = OrtRuntime(cache=Path(folder), make_model=make_model)
        opener = ModelOpener(runtime=runtime, on_native_call=lambda _doing: None, native_text=native.take)
        asked.say(**to_builtins(run_trial(trial_step(decode(PlannedProvider, asked.request)), opener)))
