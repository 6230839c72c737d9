"""What was measured is remembered if it is a number or a name."""

from pathlib import Path

import pytest

from ortdeploy.files.tuning_cache import KIND, TuningCache
from ortdeploy.state import memo


@pytest.mark.parametrize("choice", [[64], {"a": 1}, True, None, 1.5])
def test_a_choice_that_is_no_number_and_no_name_is_made_again(tmp_path: Path, choice: object) -> None:
    memo.put(tmp_path, KIND, "k", choice)
    TuningCache(tmp_path).keep("n", 64)
    assert (TuningCache(tmp_path).find("k"), TuningCache(tmp_path).find("n")) == (None, 64)


def test_without_a_state_folder_choices_are_those_of_this_process() -> None:
    cache = TuningCache(None)
    cache.keep("k", "wide")
    assert (cache.find("k"), TuningCache(None).find("k")) == ("wide", None)
