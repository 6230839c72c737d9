"""The notebook of results runs, and what it shows is what is saved in it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

pytestmark = pytest.mark.process

nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
nbformat = pytest.importorskip("nbformat", reason="notebooks are read by nbformat")
pytest.importorskip("ipykernel", reason="cells run in IPython")
pytest.importorskip("matplotlib", reason="the notebook draws with it")
NOTEBOOK = REPOSITORY / "deployments/results.ipynb"


def shown(notebook: Any) -> list[tuple[str, str]]:
    """The texts and the kinds of pictures that each cell shows; a picture's bytes depend on fonts."""
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    return [
        ("text", one.text)
        if one.output_type == "stream"
        else ("picture", "image/png" if "image/png" in one.data else "")
        for one in outputs
    ]


def test_the_notebook_shows_what_is_saved_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update_golden: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    shutil.copytree(REPOSITORY / "deployments/digits", tmp_path / "digits")
    shutil.copytree(REPOSITORY / "deployments/models", tmp_path / "models")
    shutil.copy(REPOSITORY / "deployments/digits.yaml", tmp_path)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    saved = shown(notebook)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    if update_golden:
        for cell in notebook.cells:
            cell.metadata.clear()
        nbformat.write(notebook, NOTEBOOK)
        return
    assert [kind for kind, _ in saved] == ["text", "text", "picture", "picture"]
    assert shown(notebook) == saved
