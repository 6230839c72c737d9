"""Which shard a process is: what a flag or a scheduler says, and what is refused of it."""

import pytest

from ortdeploy.cli.command_line.shards import parse_shard
from ortdeploy.diagnostics import UsageError

SLURM = {
    "SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "2",
    "SLURM_ARRAY_TASK_COUNT": "5",
}  # fmt: skip


def listed(task: str, first: str, last: str, count: str) -> dict[str, str]:
    """What Slurm tells a task of an array that is a list, such as 1,3,7."""
    return {
        "SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_MIN": first, "SLURM_ARRAY_TASK_MAX": last,
        "SLURM_ARRAY_TASK_STEP": "1", "SLURM_ARRAY_TASK_COUNT": count,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("0/1", {}, "0/1"),
        ("15/16", {"JOB_COMPLETION_INDEX": "3"}, "15/16"),
        ("auto", {"JOB_COMPLETION_INDEX": "3", "ORTDEPLOY_SHARDS": "16"}, "3/16"),
        ("auto", SLURM, "2/5"),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_MAX": "18"}, "2/5"),
        ("auto", listed("3", "3", "3", "1"), "0/1"),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "9"}, "7/9"),
    ],
)
def test_a_shard_is_what_the_flag_or_the_scheduler_says(text: str, environment: dict[str, str], said: str) -> None:
    assert str(parse_shard(text, environment)) == said


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("3", {}, "write I/N"),
        ("-1/3", {}, "write I/N"),
        ("3/3", {}, "counted from 0"),
        ("0/0", {}, "counted from 0"),
        ("auto", {}, "neither JOB_COMPLETION_INDEX"),
        ("auto", {"JOB_COMPLETION_INDEX": "3"}, "set ORTDEPLOY_SHARDS"),
        ("auto", {"JOB_COMPLETION_INDEX": "3", "ORTDEPLOY_SHARDS": "three"}, "ORTDEPLOY_SHARDS is 'three'"),
        ("auto", {"JOB_COMPLETION_INDEX": "3", "ORTDEPLOY_SHARDS": "3"}, "counted from 0"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "3"}, "SLURM_ARRAY_TASK_MIN is None"),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_ID": "13"}, "multiple of 2"),
        (
            "auto",
            listed("3", "1", "7", "3"),
            "from 1 to 7, and not in steps of 1.*Write it, with the count of the whole",
        ),
        ("auto", listed("3", "3", "7", "2"), "2 tasks from 3 to 7"),
    ],
)
def test_what_names_no_shard_is_refused(text: str, environment: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_shard(text, environment)
