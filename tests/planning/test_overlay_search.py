"""The search of `ortdeploy tune`: what it tries, what it chooses, and what it writes."""

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace
from support.specs import make_spec

from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.write import block
from ortdeploy.planning.overlay_search import Bounds, Search, Setting, Trial, noise, overlay_of
from ortdeploy.views.tuning import render_table

MANIFEST = """\
version: 1
providers: {a: [CPU], b: [{provider: CPU, options: {}}]}
models:
  digits: {path: digits.onnx, providers: a}
jobs:
  read: {model: digits, input: {path: data.npy}, output: {path: out}}
"""


def search(
    text: str = MANIFEST, cores: int = 4, bounds: Bounds | None = None, **rates: float
) -> tuple[Search, list[Setting]]:
    """A search over a machine whose speed is the product of what its settings are worth."""
    spec = make_spec(text)
    tried: list[Setting] = []

    def run(setting: Setting) -> Trial:
        tried.append(setting)
        if setting.batch == 512:
            return Trial(setting=setting, refused="it does not fit")
        rate = 100.0
        for name, worth in rates.items():
            key, _, value = name.partition("_")
            rate *= worth if str(getattr(setting, key)) == value else 1
        batch = setting.batch or 32
        return Trial(setting=setting, rows_per_second=rate * min(batch, 64), p99=batch / 1000, memory=batch * 1000)

    return Search(spec=spec, job=spec.jobs[0], bounds=bounds or Bounds(), cores=cores, run=run), tried


def test_each_setting_is_searched_and_the_best_of_all_is_kept() -> None:
    found, tried = search(chain_b=1.5, threads_4=1.2, memory_lean=1.1)
    best = found.best()
    assert best is not None
    assert best.setting == Setting(chain="b", threads=4, batch=64, memory="lean")
    assert len(tried) == len(set(tried)), "nothing is tried twice"
    assert max(setting.batch or 0 for setting in tried) == 512


@pytest.mark.parametrize(("second", "sure"), [(1.0, True), (0.25, False)])
def test_what_wins_is_tried_again_beside_what_there_was(second: float, *, sure: bool) -> None:
    found, _ = search(chain_b=1.5)
    again: list[str] = []

    def repeat(trial: Trial) -> Trial:
        again.append(trial.setting.text)
        return replace(trial, repeated=trial.rows_per_second * (1.0 if trial.setting == Setting() else second))

    found.repeat = repeat
    best = found.best()
    assert best is not None
    assert again == ["as it is", best.setting.text]
    assert best.surely_beats(found.trials[Setting()]) == sure
    assert noise(found.trials.values()) == pytest.approx(1 - second)
    table = render_table(list(found.trials.values()), best, "o.yaml" if sure else None, color=False)
    assert ("* written to o.yaml; two tries of the same settings differed by up to 0%" in table) == sure
    assert ("by chance alone, so nothing is written: two tries" in " ".join(table.split())) != sure
    assert ("*" in table) == sure, "no row is marked if nothing is written"
    found.best()
    assert len(again) == 2, "once is enough"


@pytest.mark.parametrize(
    ("before", "after", "sure"),
    [((100, 102), (150, 148), True), ((133, 210), (289, 218), False), ((100, 60), (104, 102), False)],
)
def test_a_gain_within_what_tries_differ_by_is_chance(
    before: tuple[float, float], after: tuple[float, float], *, sure: bool
) -> None:
    as_it_is, best = (
        Trial(setting=setting, rows_per_second=first, repeated=second, p99=0.1, memory=1, rows=250)
        for setting, (first, second) in ((Setting(), before), (Setting(threads=2), after))
    )
    assert best.surely_beats(as_it_is) == sure
    table = render_table([as_it_is, best], best, "o.yaml", color=False)
    assert f"{sum(after) / 2:,.0f} " in table, "the mean of the tries, for the first was taken because it was fast"
    took = f"{250 / (sum(after) / 2):.2f} s instead of {250 / (sum(before) / 2):.2f} s"
    assert f"All 250 rows take {took}, besides the start" in " ".join(table.split())


@pytest.mark.parametrize(("rows", "largest"), [(64, 64), (250, 256), (1, 1), (5000, 1024), (None, 1024)])
def test_no_batch_is_tried_that_is_more_than_all_rows(rows: int | None, largest: int) -> None:
    found, tried = search()
    run = found.run
    found.run = lambda setting: replace(
        run(setting), rows=rows, rows_per_second=float(setting.batch or 1), refused=None
    )
    found.best()
    assert max(setting.batch or 0 for setting in tried) == largest


def test_the_manifests_own_settings_are_not_tried_again() -> None:
    found, _ = search(
        """\
version: 1
models: {digits: {path: digits.onnx}}
jobs: {read: {model: digits, input: {path: data.npy}, batch: {size: 64}, output: {path: out}}}
""",
        cores=1,
    )
    found.run = lambda setting: Trial(setting=setting, rows_per_second=5.0)
    found.repeat = lambda trial: pytest.fail(trial.setting.text)
    best = found.best()
    assert best is not None
    assert best.setting == Setting()


def test_what_is_hardly_better_is_left() -> None:
    found, _ = search(chain_b=1.02)
    best = found.best()
    assert best is not None
    assert best.setting.chain is None


@pytest.mark.parametrize(
    ("bounds", "batch"), [(Bounds(p99=0.016), 16), (Bounds(memory=8000), 8), (Bounds(memory=8000, p99=0.004), 4)]
)
def test_limits_are_kept(bounds: Bounds, batch: int) -> None:
    found, _ = search(bounds=bounds)
    best = found.best()
    assert best is not None
    assert best.setting.batch == batch


def test_limits_that_nothing_keeps_give_nothing() -> None:
    assert search(bounds=Bounds(memory=1))[0].best() is None


def test_sessions_and_threads_never_exceed_the_cores() -> None:
    _, tried = (
        pair := search(
            MANIFEST.replace(", providers: a", "").replace(
                "providers: {a: [CPU], b: [{provider: CPU, options: {}}]}\n", ""
            ),
            cores=4,
        )
    )
    pair[0].best()
    layouts = {(setting.sessions or 1, setting.callers or 1, setting.threads or 1) for setting in tried}
    assert layouts >= {(1, 1, 1), (1, 1, 4), (2, 1, 2), (4, 1, 1), (1, 4, 1)}
    assert all(sessions * (threads + callers - 1) <= 4 for sessions, callers, threads in layouts)


@pytest.mark.parametrize(
    ("setting", "model"),
    [
        (
            Setting(sessions=2, threads=1),
            "sessions: [{name: cpu, providers: [CPU], count: 2}], "
            "session: {intra_op_num_threads: 1, config: {session.intra_op.allow_spinning: false}}",
        ),
        (
            Setting(callers=2, threads=1),
            "sessions: [{name: cpu, providers: [CPU], callers: 2}], session: {intra_op_num_threads: 1}",
        ),
    ],
)
def test_layouts_are_written_as_sessions(setting: Setting, model: str) -> None:
    spec = make_spec(MANIFEST.replace(", providers: a", ""))
    written, _ = parse_document(f"models: {{digits: {{{model}}}}}".encode(), "o.yaml")
    assert written is not None
    assert overlay_of(setting, spec.jobs[0], spec.models) == written.data


def test_an_overlay_reads_back_as_what_it_changes() -> None:
    spec = make_spec(MANIFEST)
    setting = Setting(chain="b", threads=2, batch=64, memory="lean")
    overlay = overlay_of(setting, spec.jobs[0], spec.models)
    document, problems = parse_document(block(overlay).encode(), "o.yaml")
    assert document is not None
    assert not problems
    assert document.data == {
        "jobs": {"read": {"batch": {"size": 64}}},
        "models": {"digits": {"providers": "b", "session": {"intra_op_num_threads": 2}, "memory": "lean"}},
    }


def test_trials_are_kept_as_earlier_versions_kept_them() -> None:
    setting = {"chain": None, "threads": 2, "sessions": None, "callers": None, "batch": 4, "memory": "lean"}
    measured = {"rows_per_second": 1.5, "p99": 0.1, "memory": 3, "refused": None, "repeated": None, "rows": 7}
    trial = convert({"setting": setting, **measured}, Trial)
    assert trial.setting == Setting(threads=2, batch=4, memory="lean")
    assert to_builtins(trial) == {"setting": setting, **measured}
