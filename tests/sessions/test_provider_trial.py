"""The small model that `ortdeploy doctor` runs on each provider: what it tells if results or nodes are missing."""

from typing import Any

from support.fakes import FakeRuntime

from ortdeploy.plan.steps import PlannedProvider
from ortdeploy.providers.catalogue import CPU
from ortdeploy.sessions.opening import ModelOpener
from ortdeploy.sessions.provider_trial import ProviderTrial, run_trial, trial_step


def tried(run: Any) -> ProviderTrial:
    opener = ModelOpener(runtime=FakeRuntime(run), on_native_call=lambda _doing: None, native_text=lambda: "")
    return run_trial(trial_step(PlannedProvider(name=CPU, options={})), opener)


def test_wrong_results_are_a_problem() -> None:
    assert "away from the CPU's" in (tried(lambda feeds: {"y": feeds["x"]}).problem or "")
