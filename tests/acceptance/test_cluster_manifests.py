"""Manifests for schedulers are what these schedulers take, by schemas of their own."""

from typing import Any

import pytest
import yaml
from conftest import REPOSITORY

CLUSTER = REPOSITORY / "deployments/cluster"
JOBS = ["finish-job.yaml", "indexed-job.yaml"]
SINCE = "1.33"
"""The version of Kubernetes from which on `backoffLimitPerIndex` needs no feature gate."""


def load(name: str) -> Any:
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_one_by_the_schema_of_kubernetes(name: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, with its schemas, is missing")
    for version in (SINCE, kubernetes.latest_version()):
        kubernetes.validate(load(name), version, strict=True)


def test_the_schema_of_kubernetes_would_find_a_mistake() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, with its schemas, is missing")
    mistakes: tuple[dict[str, Any], ...] = (
        {"completionMod": "Indexed"},
        {"completions": "16"},
        {"podFailurePolicy": {"rules": [{}]}},
    )
    for change in mistakes:
        job = load("indexed-job.yaml")
        job["spec"].update(change)
        with pytest.raises(kubernetes.ValidationError):
            kubernetes.validate(job, SINCE, strict=True)


def test_a_workflow_is_one_by_the_model_of_argo() -> None:
    """The model drops keys that it does not know, so what it has read is compared with what is written."""
    models = pytest.importorskip("hera.workflows.models", reason="hera, with the model of Argo's API, is missing")
    written = load("argo-workflow.yaml")

    def read(document: Any) -> Any:
        return models.Workflow.model_validate(document).model_dump(by_alias=True, exclude_none=True, mode="json")

    assert read(written) == written
    written["spec"]["templates"][1]["retryStrateg"] = {}
    assert read(written) != written


def test_only_a_refused_plan_fails_an_index_for_good() -> None:
    job = load("indexed-job.yaml")["spec"]
    (rule,) = [one for one in job["podFailurePolicy"]["rules"] if one["action"] == "FailIndex"]
    assert rule["onExitCodes"]["values"] == [64]
    assert [one["action"] for one in job["podFailurePolicy"]["rules"]] == ["Ignore", "FailIndex"]
    template = next(one for one in load("argo-workflow.yaml")["spec"]["templates"] if one["name"] == "shard")
    assert template["retryStrategy"]["expression"] == "asInt(lastRetry.exitCode) != 64"


def test_every_manifest_is_tested() -> None:
    assert sorted(path.name for path in CLUSTER.iterdir()) == sorted([*JOBS, "argo-workflow.yaml", "array.sbatch"])
