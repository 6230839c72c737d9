"""The gallery's models of tables, pictures and lines give what the fitted models of their packages give."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import Cli
from support.gallery import applied, deployed, vectors

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that fit and convert


def made() -> Any:
    """Return the functions that fit the gallery's models."""
    import make_models  # noqa: PLC0415  when deployed() has found its packages

    return make_models


def singles(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return what the ONNX model is fed."""
    return np.asarray(rows, np.float32)


def test_wines_are_classified_as_by_scikit_learn(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("wine", tmp_path)
    rows = applied(cli, manifest)
    model, held, _ = made().fitted_wine()
    assert [int(row["label"]) for row in rows] == model.predict(singles(held)).tolist()
    np.testing.assert_allclose(vectors(rows, "probabilities"), model.predict_proba(singles(held)), atol=1e-5)


def test_diabetes_goes_on_as_scikit_learn_says(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("diabetes", tmp_path)
    rows = applied(cli, manifest)
    model, held, _ = made().fitted_diabetes()
    assert np.isnan(held).any()
    np.testing.assert_allclose(vectors(rows, "variable")[:, 0], model.predict(singles(held)), rtol=1e-5)


def test_cells_are_what_lightgbm_says(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("breast-cancer", tmp_path)
    rows = applied(cli, manifest)
    model, held, _ = made().fitted_breast_cancer()
    assert np.isnan(held).any()
    expected = model.predict_proba(held)
    np.testing.assert_allclose([row["probabilities"] for row in rows], expected, atol=1e-6)
    assert [row["kind"] for row in rows] == expected.argmax(axis=1).tolist()


def test_faces_are_what_scikit_learn_says(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("faces", tmp_path)
    rows = applied(cli, manifest)
    model, held = made().fitted_faces()
    expected = model.predict_proba(held.reshape(len(held), -1))
    np.testing.assert_allclose([row["probabilities"] for row in rows], expected, atol=1e-5)
    assert [row["label"] for row in rows] == expected.argmax(axis=1).tolist()


def test_lines_are_what_scikit_learn_says(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("prose", tmp_path)
    rows = applied(cli, manifest)
    model, held = made().fitted_prose()
    expected = model.predict_proba(held)
    assert [int(row["kind"]) for row in rows] == expected.argmax(axis=1).tolist()
    np.testing.assert_allclose([float(row["probability"]) for row in rows], expected.max(axis=1), atol=1e-5)


def test_windows_of_motors_are_as_usual_as_scikit_learn_says(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("vibration", tmp_path)
    rows = applied(cli, manifest)
    usual = {name: [float(row["usual"]) for row in rows if name in row["path"]] for name in ("healthy", "worn")}
    forest = made().fitted_vibration()
    for name, found in usual.items():
        whole = np.trunc(made().vibrations(len(name), 2, worn=name == "worn").clip(-1, 1) * 32767) / 32768
        windows = singles(whole)[: len(found) * 1024].reshape(-1, 1024)
        expected = forest.decision_function(made().features(windows))
        np.testing.assert_allclose(found, expected, atol=1e-3)
    later = len(usual["worn"]) // 2 + 1
    assert max(usual["worn"][later:]) < 0 < np.median(usual["healthy"])


def test_sunspots_are_forecast_as_by_scikit_learn(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("forecast", tmp_path)
    rows = applied(cli, manifest)
    model, years, spots = made().fitted_forecast()
    windows = np.lib.stride_tricks.sliding_window_view(spots, made().YEARS)
    assert len(rows) == len(windows)
    np.testing.assert_allclose([row["variable"] for row in rows], model.predict(windows), rtol=1e-4, atol=1e-3)
    assert str(rows[0]["last_date"]).startswith(str(years[made().YEARS - 1]))


def test_digits_are_like_those_that_scikit_learn_finds(cli: Cli, tmp_path: Path) -> None:
    manifest, _ = deployed("search", tmp_path)
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415  when deployed() has found it

    rows = applied(cli, manifest)
    model, known, names, held = made().fitted_search()
    nearest = NearestNeighbors(n_neighbors=5, metric="cosine").fit(known)
    far, places = nearest.kneighbors(model.transform(held).astype(np.float32))
    assert [row["names"] for row in rows] == names[places].tolist()
    np.testing.assert_allclose([row["scores"] for row in rows], 1 - far, atol=1e-5)
