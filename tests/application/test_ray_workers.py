"""Actors by number: what Ray answers, loses and says, with a Ray that only pretends."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ortdeploy.application import ray_workers
from ortdeploy.application.driver import Answer
from ortdeploy.application.ray_workers import Needs, RayPool, joined
from ortdeploy.diagnostics import OrtdeployError


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class ActorUnavailableError(RayError):
    pass


class RayTaskError(RayError):
    pass


class FakeRay:
    """Answers what a test puts into `results`, by actor and call."""

    exceptions = SimpleNamespace(
        RayError=RayError,
        ActorDiedError=ActorDiedError,
        ActorUnavailableError=ActorUnavailableError,
        RayTaskError=RayTaskError,
    )

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.killed: list[str] = []
        self.results: dict[str, Any] = {}

    def remote(self, _kind: type) -> Any:
        def options(**settings: Any) -> Any:
            self.settings = settings
            return SimpleNamespace(remote=lambda _module, request: self._actor(request["name"]))

        return SimpleNamespace(options=options)

    def _actor(self, name: str) -> Any:
        begin = SimpleNamespace(remote=lambda: f"{name} begins")
        return SimpleNamespace(name=name, begin=begin, make=SimpleNamespace(remote=lambda part: f"{name} makes {part}"))

    def wait(self, refs: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert timeout is not None
        done = [one for one in refs if one in self.results][:num_returns]
        return done, [one for one in refs if one not in done]

    def get(self, ref: str) -> Any:
        found = self.results[ref]
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.name)


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the pool has slept."""
    slept: list[float] = []
    monkeypatch.setattr(ray_workers, "time", SimpleNamespace(sleep=slept.append))
    return slept


@pytest.fixture
def pool(ray: FakeRay, slept: list[float]) -> RayPool:  # noqa: ARG001  nobody waits in tests
    return RayPool(ray, 2, Needs(cpus=3, gpus=1), "module", {"job": "read"})


def test_actors_are_asked_for_as_they_are_needed_and_start_again_by_themselves(ray: FakeRay, pool: RayPool) -> None:
    assert pool.workers == (0, 1)
    assert (ray.settings["num_cpus"], ray.settings["num_gpus"]) == (3, 1)
    assert (ray.settings["max_restarts"], ray.settings["max_task_retries"]) == (-1, 0)
    pool.dismiss()
    assert ray.killed == ["ray 0", "ray 1"]


def test_all_answers_that_are_there_come_at_once_and_each_once(ray: FakeRay, pool: RayPool) -> None:
    assert list(pool.answers(1.0)) == []
    pool.begin(0)
    pool.make(1, 7)
    pool.make(1, 8)
    ray.results = {"ray 0 begins": {"kind": "ready"}, "ray 1 makes 7": {"kind": "decided"}}
    assert list(pool.answers(1.0)) == [
        Answer(worker=0, part=None, said={"kind": "ready"}),
        Answer(worker=1, part=7, said={"kind": "decided"}),
    ]
    assert list(pool.answers(1.0)) == []


@pytest.mark.parametrize(
    ("error", "gone", "reason"),
    [
        (ActorUnavailableError("The actor is unavailable\n socket closed."), False, "The actor is unavailable: socket closed"),
        (ActorDiedError("The actor died."), True, "The actor died"),
        (RayTaskError("ray::WorkerActor.begin()\n  File x\nModuleNotFoundError: ortdeploy"), True, "ray::WorkerActor.begin(): ModuleNotFoundError: ortdeploy"),
        (RayError(""), False, "RayError"),
    ],
)  # fmt: skip
def test_of_a_lost_actor_one_answer_comes_and_nothing_of_what_else_it_was_asked(
    ray: FakeRay, pool: RayPool, error: Exception, reason: str, *, gone: bool
) -> None:
    for part in (3, 4):
        pool.make(0, part)
    pool.make(1, 5)
    ray.results = {"ray 0 makes 3": error, "ray 0 makes 4": error, "ray 1 makes 5": {"kind": "decided"}}
    lost, other = pool.answers(1.0)
    assert lost == Answer(worker=0, part=3, said=None, reason=reason, gone=gone)
    assert other.worker == 1
    assert list(pool.answers(1.0)) == []


def test_a_crew_that_was_asked_nothing_waits_as_long_as_it_may(pool: RayPool, slept: list[float]) -> None:
    assert list(pool.answers(1.0)) == []
    assert slept == [1.0]


@pytest.mark.parametrize(
    ("address", "words"),
    [("local", "Ray cannot be started on this machine (The current node timed out)"), ("auto", "is in no Ray cluster")],
)
def test_whatever_ray_raises_where_it_does_not_start_is_told_in_words(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a node that takes longer than thirty seconds, it raises a plain Exception."""

    def init(**_: Any) -> None:
        raise Exception("The current node timed out.")  # noqa: TRY002  as Ray does

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(OrtdeployError) as refused, joined(address):
        pass
    assert words in str(refused.value)


def test_a_host_whose_name_cannot_be_asked_for_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with pytest.raises(OrtdeployError, match=r"the Ray cluster a\.\.b:6379 cannot be reached"), joined("a..b:6379"):
        pass
