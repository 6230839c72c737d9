"""Completes a planned job with its files and the state of its output, as they are now."""

from collections.abc import Sequence

from msgspec.structs import replace

from ortdeploy.facts.data import InputFacts
from ortdeploy.plan.steps import Fact, JobInput
from ortdeploy.redaction import shown_path


def with_arrived(planned: JobInput, facts: InputFacts) -> JobInput:
    """Return a job's input with the files to read, and how many rows there are."""
    return replace(
        planned,
        files=facts.states,
        gone=facts.gone,
        first_row=facts.first_row,
        rows=None if facts.rows is None else facts.first_row - facts.rows_before + facts.rows,
        rerun=facts.rerun,
        rerun_rows=facts.rerun_rows,
        unreadable=facts.unreadable,
        rows_before=facts.rows_before,
    )


def fact_of_inputs(job: str, patterns: Sequence[str], facts: InputFacts) -> Fact:
    """Return the fact that fixes the states of a job's input files."""
    return Fact(kind="inputs", name=f"job {job}: {', '.join(map(shown_path, patterns))}", value=facts.digest)
