"""`preset: generate`: texts by ONNX Runtime GenAI, with the model that deployments/make_tiny_writer.py makes."""

import csv
import importlib.util
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import REPOSITORY, Cli, run_fork, run_process
from msgspec.structs import replace
from support import forks
from support.effort import effort
from support.models import make_adapter

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.memory_budget import PROCESS
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.pipelines.component import Component
from ortdeploy.pipelines.generate import GenerateSession, groups_of
from ortdeploy.plan.steps import OpenSession, PlannedSession, RunJob
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.runtime import bounded_tokenizer, trial_opening
from ortdeploy.runtime.generation import GenaiSession, Writing
from ortdeploy.runtime.library import says_no_memory
from ortdeploy.sessions.opening import OpenedSession
from ortdeploy.streaming.hooks import Hooks
from ortdeploy.streaming.row_runner import RowRunner

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime_genai"), reason="needs the extra generate")

MANIFEST = """\
version: 1
name: writer
pipelines:
  write: {preset: generate, from: models/writer, session: {intra_op_num_threads: 1}, SAID}
jobs:
  notes:
    pipeline: write
    input: {path: notes.csv, key: [id]}
    output: {path: outbox, format: csv}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(REPOSITORY / "deployments/models/writer", tmp_path / "models/writer")
    return tmp_path


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "notes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", *rows[0]])
        writer.writeheader()
        writer.writerows({"id": index, **row} for index, row in enumerate(rows))


def apply(
    cli: Cli, folder: Path, rows: list[dict[str, Any]], said: str = "seed: 0, temperature: 0", more: str = ""
) -> Any:
    write_rows(folder, rows)
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said) + more)
    return cli("apply", folder / "m.yaml", "--new-run")


def results(folder: Path, output: str = "outbox") -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for path in sorted((folder / output).glob("part-*.csv")):
        with path.open(newline="") as file:
            found += csv.DictReader(file)
    return found


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "outbox/_failed.jsonl").read_text().splitlines()]


def test_rows_in_and_text_out(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, [{"prompt": "the pump leaks oil"}, {"prompt": "valve is hot"}]).code == 0
    assert results(folder) == [
        {
            "id": "0",
            "text": '{"part": "pump", "fault": "leak"}',
            "tokens": "5",
            "finish_reason": "end",
            "input_tokens": "9",
        },
        {
            "id": "1",
            "text": '{"part": "valve", "fault": "heat"}',
            "tokens": "5",
            "finish_reason": "end",
            "input_tokens": "5",
        },
    ]


def test_the_example_gives_each_row_its_adapter(cli: Cli, tmp_path: Path) -> None:
    for name in ("models/writer", "adapters"):
        shutil.copytree(REPOSITORY / "deployments" / name, tmp_path / name)
    for name in ("writer.yaml", "notes.csv"):
        shutil.copy(REPOSITORY / "deployments" / name, tmp_path / name)
    assert cli("apply", tmp_path / "writer.yaml").code == 0
    assert [row["text"] for row in results(tmp_path, "outbox/notes")] == [
        '{"part": "pump", "fault": "leak"}',
        '{"part": "valve", "fault": "heat"} Please look at it soon.',
        '{"part": "motor", "fault": "noise"} Look at it now!',
        '{"part": "belt", "fault": "none"}',
        '{"part": "unknown", "fault": "blockage"} Please look at it soon.',
        '{"part": "unknown", "fault": "none"} Look at it now!',
    ]


@pytest.mark.parametrize(
    ("said", "text", "reason", "tokens"),
    [
        ("max_new_tokens: 2", '{"part": "pump', "length", "2"),
        ("stop: [fault, xyz]", '{"part": "pump", "', "stop", "3"),
        ("num_beams: 2", '{"part": "pump", "fault": "leak"}', "end", "5"),
    ],
)
def test_why_a_text_ends_is_told(cli: Cli, folder: Path, said: str, text: str, reason: str, tokens: str) -> None:
    result = apply(cli, folder, [{"prompt": "the pump leaks"}], said)
    assert result.code == 0, result.err
    (row,) = results(folder)
    assert (row["text"], row["finish_reason"], row["tokens"]) == (text, reason, tokens)


def test_a_text_ends_where_the_context_does(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, [{"prompt": "pump" + " pump" * 125}]).code == 0
    (row,) = results(folder)
    assert (row["finish_reason"], row["tokens"], row["input_tokens"]) == ("context", "2", "126")


def test_a_prompt_over_the_context_fails_alone_and_says_by_how_much(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": "pump"}, {"prompt": "pump" + " pump" * 129}, {"prompt": ""}, {"prompt": "the belt"}]
    result = apply(cli, folder, rows, more="    errors: {max_failed: 2}\n")
    assert result.code == 0, result.err
    assert [row["id"] for row in results(folder)] == ["0", "3"]
    over, empty = letters(folder)
    assert "130 tokens" in over["message"]
    assert "3 too many" in over["message"]
    assert "no token" in empty["message"]


def test_columns_say_how_a_row_is_written(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": "the pump", "max_new_tokens": 1}, {"prompt": "the pump", "max_new_tokens": 3}]
    assert apply(cli, folder, rows, "max_new_tokens: 2").code == 0
    assert [row["tokens"] for row in results(folder)] == ["1", "3"]


def test_a_column_out_of_its_range_fails_its_row(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": "the pump", "top_p": 0.5}, {"prompt": "the pump", "top_p": 1.5}]
    assert apply(cli, folder, rows, more="    errors: {max_failed: 1}\n").code == 0
    assert "top_p is 1.5" in letters(folder)[0]["message"]


def test_the_range_of_a_column_is_told_in_whole_numbers(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, [{"prompt": "the pump", "max_new_tokens": 0}]).code == 1
    assert "max_new_tokens is 0, and must lie in 1 to 2147483647" in letters(folder)[0]["message"]


def test_rows_of_a_model_that_says_they_are_independent_are_written_alone(cli: Cli, folder: Path) -> None:
    """That is what the manifest says without a word too."""
    result = apply(cli, folder, [{"prompt": "the pump leaks"}], "components: {decoder: {row_independence: true}}")
    assert result.code == 0, result.err


def test_a_seed_draws_the_same_whatever_stands_beside_a_row(cli: Cli, folder: Path) -> None:
    """A high temperature makes a row of this model draw from all of its tokens."""
    rows = [{"prompt": "the belt", "seed": seed} for seed in (1, 2, 1)]
    said = "temperature: 100, top_k: 100, max_new_tokens: 8"
    assert apply(cli, folder, rows, said).code == 0
    one, other, again = [row["text"] for row in results(folder)]
    assert one == again != other
    assert apply(cli, folder, [{"prompt": "it is hot", "seed": 5}, rows[1], rows[0]], said).code == 0
    assert [row["text"] for row in results(folder)][1:] == [other, one]


def test_a_column_says_where_texts_stop(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": "the pump leaks", "stop": stop} for stop in ('["fault"]', "[]", "fault", "{}", '[""]')]
    assert apply(cli, folder, rows, "stop: [part]", "    errors: {max_failed: 3}\n").code == 0
    assert [row["text"] for row in results(folder)] == ['{"part": "pump", "', '{"part": "pump", "fault": "leak"}']
    for letter, why in zip(letters(folder), ("no JSON text", "no list", "no text of 1 to 1000"), strict=True):
        assert why in letter["message"]


def test_seconds_and_log_probabilities_are_given_where_columns_name_them(cli: Cli, folder: Path) -> None:
    text = MANIFEST.replace("SAID", "temperature: 0").replace("format: csv}", "format: jsonl, columns: [COLUMNS]}")
    (folder / "m.yaml").write_text(text.replace("COLUMNS", "tokens, seconds, log_probabilities"))
    write_rows(folder, [{"prompt": "the pump leaks"}, {"prompt": "the belt"}])
    result = cli("apply", folder / "m.yaml")
    assert result.code == 0, result.err
    (part,) = folder.glob("outbox/part-*")
    for row in map(json.loads, part.read_text().splitlines()):
        assert row["seconds"] > 0
        assert len(row["log_probabilities"]) == row["tokens"] == 5
        assert all(-0.3 < one <= 0 for one in row["log_probabilities"][1:])  # this model is sure of each but the first


def ask_for_log_probabilities(folder: Path, said: str, form: str) -> None:
    text = MANIFEST.replace("SAID", said)
    (folder / "m.yaml").write_text(text.replace("format: csv}", f"format: {form}, columns: [log_probabilities]}}"))


def test_what_is_a_list_in_each_row_is_refused_for_a_csv_by_the_plan(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump leaks"}])
    ask_for_log_probabilities(folder, "temperature: 0", "csv")
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "unsupported-tensor" in result.words
    assert "or write a line for each item, explode: [log_probabilities]" in result.words


def test_log_probabilities_of_rows_that_are_written_together_are_their_own(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": text} for text in ("the pump", "the belt leaks", "it is hot")])
    found = []
    for independent, batch in (("{}", 1), ("{row_independence: false}", 3)):
        text = MANIFEST.replace("SAID", f"max_new_tokens: 9, components: {{decoder: {independent}}}")
        text = text.replace("outbox, format: csv", f"outbox-{batch}, format: jsonl, columns: [log_probabilities]")
        (folder / "m.yaml").write_text(f"{text}    batch: {{size: {batch}}}\n")
        assert cli("apply", folder / "m.yaml").code == 0
        (part,) = folder.glob(f"outbox-{batch}/part-*")
        found.append([json.loads(line)["log_probabilities"] for line in part.read_text().splitlines()])
    alone, together = found
    assert [pytest.approx(one, abs=1e-5) for one in alone] == together


def test_log_probabilities_of_beams_are_refused(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump leaks"}])
    ask_for_log_probabilities(folder, "num_beams: 2", "jsonl")
    result = cli("apply", folder / "m.yaml")
    assert result.code == 1
    assert "texts that 2 beams write" in result.words


def test_answers_are_columns(cli: Cli, folder: Path) -> None:
    """Text that is cut off is no answer; where no column of answers is wanted, it is a text."""
    schema = "{type: object, properties: {part: {enum: [belt, pump]}, fault: {type: string}}, required: [part, fault], additionalProperties: false}"
    rows = [{"prompt": "the pump leaks", "max_new_tokens": most} for most in (9, 3)]
    assert apply(cli, folder, rows, f"json_schema: {schema}", "    errors: {max_failed: 1}\n").code == 0
    (row,) = results(folder)
    assert (row["part"], row["fault"], row["finish_reason"]) == ("pump", "leak", "end")
    assert "no whole JSON text" in letters(folder)[0]["message"]
    assert "3 tokens (length)" in letters(folder)[0]["message"]
    (folder / "m.yaml").write_text(
        (folder / "m.yaml").read_text().replace("format: csv", "format: csv, columns: [text]")
    )
    assert cli("apply", folder / "m.yaml", "--new-run").code == 0
    assert len(results(folder)) == 2


def test_messages_go_through_the_template_after_the_system_message(cli: Cli, folder: Path) -> None:
    messages = [{"role": "user", "content": "the pump"}, {"role": "assistant", "content": "?"}]
    write_rows(folder, [{"messages": json.dumps(messages)}, {"messages": "no JSON"}])
    rows = [{"messages": json.dumps(messages)}, {"messages": "no JSON"}, {"messages": '[{"role": "user"}]'}]
    said, more = "chat: messages, system: leaks", "    errors: {max_failed: 2}\n"
    assert apply(cli, folder, rows, said, more).code == 0
    (row,) = results(folder)
    assert row["text"] == '{"part": "pump", "fault": "leak"}'  # the system message has the fault
    assert [one["row"] for one in letters(folder)] == [1, 2]


@pytest.mark.parametrize(("said", "tokens"), [("chat: none", ["5", "5", "6"]), ("chat: prompt", ["6", "7", "8"])])
def test_prompts_begin_as_the_tokenizer_wants_unless_a_template_says_it(
    cli: Cli, folder: Path, said: str, tokens: list[str]
) -> None:
    """As in transformers, but that a prompt which has the token itself gets no other."""
    path = folder / "models/writer/tokenizer.json"
    begin, text = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    added = {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
    framed = {"type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text], "special_tokens": added}
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": framed}))
    assert apply(cli, folder, [{"prompt": f"{begins}the pump"} for begins in ("", "<s>", "<s><s>")], said).code == 0
    assert [row["input_tokens"] for row in results(folder)] == tokens


def test_a_prompt_keeps_what_begins_it_if_its_tokenizer_adds_nothing(cli: Cli, folder: Path) -> None:
    assert apply(cli, folder, [{"prompt": "<s><s>the pump"}]).code == 0
    assert results(folder)[0]["input_tokens"] == "6"


def test_lines_of_tags_are_no_lines_of_the_prompt(cli: Cli, folder: Path) -> None:
    """As in transformers, which hands no tools to a template, too."""
    template = "{% for m in messages %}\n    {% if tools is none %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    (folder / "models/writer/chat_template.jinja").write_text(template)
    assert apply(cli, folder, [{"prompt": "the pump"}], "chat: prompt").code == 0
    assert results(folder)[0]["input_tokens"] == "5"  # those of the prompt, and the end of its line


def test_all_keys_of_a_message_reach_the_template(cli: Cli, folder: Path) -> None:
    path = folder / "models/writer/tokenizer_config.json"
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }} {{ m.name }}{% else %}{% for part in m.content "
        "%}{{ part.text }}{% endfor %}{% endif %}{% for one in m.tool_calls %} {{ one.name }}{% endfor %}{% endfor %}"
    )
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    user = {"role": "user", "content": "the pump"}
    right = [
        {**user, "name": "leaks"},
        {"role": "user", "content": [{"type": "text", "text": "the pump "}, {"type": "text", "text": "leaks"}]},
        {**user, "tool_calls": [{"name": "leaks"}]},
    ]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"content": "the pump"}, "a message has no text role"),
        ({"role": "user"}, "a message has neither content nor tool_calls"),
        ({**user, "content": 7}, "does not take the messages: 'int' object is not iterable"),
        ({**user, "name": "a\0b"}, "character 11 of what the model reads is NUL"),
        ({**user, "name": "a\ud800"}, "character 11 of what the model reads is half of a surrogate pair"),
    ]
    texts = [json.dumps([one]) for one in (*right, *(one for one, _ in wrong))]
    rows = [{"messages": text} for text in (*texts, texts[0].replace('"name"', '"role"'))]
    assert apply(cli, folder, rows, "chat: messages", "    errors: {max_failed: 6}\n").code == 0
    assert [row["text"] for row in results(folder)] == ['{"part": "pump", "fault": "leak"}'] * len(right)
    for letter, why in zip(letters(folder), (*(why for _, why in wrong), '"role" is there twice'), strict=True):
        assert why in letter["message"]


def test_the_report_counts_tokens_and_why_texts_ended(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": "the pump", "max_new_tokens": most} for most in (2, 2, 9)]
    assert apply(cli, folder, rows, more="    report: [html]\n").code == 0
    written = json.loads((folder / "outbox/_run.json").read_text())["written"]
    assert written.pop("tokens_a_second") > 0
    page = (folder / "outbox/_run.html").read_text()
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "3 tokens of a text 4 tokens of a prompt" in shown
    assert "end 1, length 2" in shown
    assert "pump&quot;, &quot;fault&quot;" in shown, "its table of rows has the texts"
    assert written == {"tokens": 2 + 2 + 5, "input_tokens": 3 * 4, "length": 2, "end": 1}


def test_the_forecast_counts_the_library_and_the_keys_and_values_of_all_beams_and_rows(folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    said = "num_beams: 3, components: {decoder: {row_independence: false}}"
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said) + "    batch: {size: 4}\n")
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    (job,) = [step for step in plan.steps if isinstance(step, RunJob)]
    assert job.limits.forecast is not None
    parts = {one.what: one.size for one in job.limits.forecast.parts}
    config = json.loads((folder / "models/writer/genai_config.json").read_text())["model"]
    assert parts["keys and values"] == 4 * 3 * 2 * config["decoder"]["head_size"] * 4 * config["context_length"]
    assert parts["process"] > PROCESS


@pytest.mark.parametrize("said", ["", "max_new_tokens: 9, ", "num_beams: 2, ", "repetition_penalty: 1.5, "])
def test_rows_run_together_where_the_manifest_lets_them(cli: Cli, folder: Path, said: str) -> None:
    texts = ("the pump", "the belt", "valve is hot", "the motor", "it is loud", "<pad>the belt leaks <pad>")
    rows = [{"prompt": text} for text in texts]
    assert apply(cli, folder, rows, f"{said}temperature: 0").code == 0
    alone = results(folder)
    together = f"{said}temperature: 0, components: {{decoder: {{row_independence: false}}}}"
    assert apply(cli, folder, rows, together, "    batch: {size: 6}\n").code == 0
    assert results(folder) == alone
    independent = "temperature: 0, components: {decoder: {row_independence: true}}"
    refused = apply(cli, folder, rows, independent, "    batch: {size: 4}\n")
    assert refused.code == 1
    assert "Set batch: {size: 1}. Rows run together only if its component says row_independence: false" in refused.words


def test_answers_of_rows_beside_each_other_may_differ_in_length(cli: Cli, folder: Path) -> None:
    schema = "{type: object, properties: {part: {enum: [pump, valve]}, fault: {enum: [leak, hmmmmmmmmm]}}, required: [part, fault], additionalProperties: false}"
    said = f"json_schema: {schema}, max_new_tokens: 40, components: {{decoder: {{row_independence: false}}}}"
    rows = [{"prompt": "the pump leaks oil"}, {"prompt": "the valve is hot"}]
    result = apply(cli, folder, rows, said, "    batch: {size: 2}\n")
    assert result.code == 0, result.err
    assert [row["fault"] for row in results(folder)] == ["leak", "hmmmmmmmmm"]
    assert "batch.cut_anew" not in result.err


def test_beams_and_a_json_schema_are_refused_before_the_first_row(cli: Cli, folder: Path) -> None:
    said = "num_beams: 2, json_schema: {type: object}"
    result = apply(cli, folder, [{"prompt": "it leaks"}], said)
    assert result.code == 1
    assert "2 beams write no text that fits a json_schema; set num_beams to 1" in result.words
    assert not results(folder)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("num_beams: 2, seed: 3, top_p: 0.5", "Beams draw no tokens, so top_p and seed would have no effect"),
        ("chat: none, system: Be brief.", "nothing goes through the chat template, so system would have no effect"),
    ],
)
def test_keys_without_effect_beside_others_are_refused_by_the_plan(cli: Cli, folder: Path, said: str, why: str) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert why in result.words


def test_a_row_that_wants_beams_to_draw_fails(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": "the pump", "temperature": temperature, "num_beams": 2} for temperature in (0, 1.5)]
    assert apply(cli, folder, rows, "max_new_tokens: 9", "    errors: {max_failed: 1}\n").code == 0
    assert len(results(folder)) == 1
    assert "2 beams draw no tokens, so temperature would have no effect" in letters(folder)[0]["message"]


def test_a_list_that_is_no_text_is_told_how_it_is_written(cli: Cli, folder: Path) -> None:
    (folder / "notes.jsonl").write_text(json.dumps({"id": 0, "messages": [{"role": "user", "content": "the pump"}]}))
    (folder / "m.yaml").write_text(MANIFEST.replace("notes.csv", "notes.jsonl").replace("SAID", "chat: messages"))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "It takes a list as one text, its JSON in quotes." in result.words


def test_a_list_among_prompts_fails_alone(cli: Cli, folder: Path) -> None:
    lines = [{"id": 0, "prompt": "the pump leaks"}, {"id": 1, "prompt": ["it is hot"]}]
    (folder / "notes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = MANIFEST.replace("notes.csv", "notes.jsonl").replace("SAID", "temperature: 0")
    (folder / "m.yaml").write_text(f"{text}    errors: {{max_failed: 1}}\n")
    result = cli("apply", folder / "m.yaml")
    assert result.code == 0, result.err
    assert [row["id"] for row in results(folder)] == ["0"]
    assert letters(folder)[0]["message"] == "input prompt takes [1] and gets [1, 1]"


HOW = Writing(
    context=128, max_new_tokens=9, do_sample=False, temperature=1, top_p=1, top_k=1, repetition_penalty=1,
    num_beams=1, seed=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("how", "lengths", "groups"),
    [
        (HOW, (4, 5, 8, 9, 5), [[0, 1, 4, 2], [3]]),
        (HOW, (0, 0, 1), [[0, 1], [2]]),
        (HOW, (70, 119, 120), [[0, 1], [2]]),
        (replace(HOW, max_new_tokens=None), (4, 5, 4), [[0, 2], [1]]),
        (replace(HOW, repetition_penalty=1.1), (4, 5, 4), [[0, 2], [1]]),
        (replace(HOW, num_beams=2), (4, 5, 4), [[0, 2], [1]]),
        (replace(HOW, json_schema="{}"), (4, 5, 4), [[0], [2], [1]]),
    ],
)
def test_prompts_that_are_about_as_long_are_written_together(
    how: Writing, lengths: tuple[int, ...], groups: list[list[int]]
) -> None:
    assert groups_of([np.ones(length, np.int32) for length in lengths], [how] * len(lengths), 0) == groups


def test_rows_that_are_written_otherwise_or_seem_shorter_are_written_apart() -> None:
    prompts = [np.array(one, np.int32) for one in ([1, 2], [1, 0], [0, 1], [1, 2])]
    assert groups_of(prompts, [HOW, HOW, HOW, replace(HOW, seed=1)], 0) == [[0, 2], [1], [3]]


def test_a_text_that_takes_too_long_ends_between_two_tokens(folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "temperature: 0"))
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    (opening,) = [step for step in plan.steps if isinstance(step, OpenSession)]
    session = GenaiSession(opening, opening.candidates[0])
    session.end_runs(early=True)
    with pytest.raises(OrtdeployError, match="ended"):
        session.write([session.tokens_of("the pump")], HOW, ())
    session.end_runs(early=False)
    (written,) = session.write([session.tokens_of("the pump")], HOW, ())
    assert written.finish_reason == "end"


def test_a_rendering_that_takes_too_long_is_ended_by_run_timeout(folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "chat: prompt"))
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    (opening,) = [step for step in plan.steps if isinstance(step, OpenSession)]
    (job,) = [step for step in plan.steps if isinstance(step, RunJob)]
    assert job.pipeline is not None
    opened = OpenedSession(candidate=opening.candidates[0], session=GenaiSession(opening, opening.candidates[0]))
    session = GenerateSession(job.pipeline, {"write.decoder": Component("write.decoder", opened)})
    session.end_runs(early=True)
    with pytest.raises(OrtdeployError, match="the chat template does not take the messages: it was ended"):
        session.run(["text"], {"prompt": np.array(["the pump"], object)}, ())


class _Slow:
    """A session that writes, in the middle of a text."""

    placement: Mapping[str, int] = {}
    cpu_operators = ()
    cache = None
    written: Mapping[str, int] = {}
    progressed = 7.5

    def run(self, outputs: Any, feeds: Any, adapters: Any) -> Any:
        raise AssertionError


def test_each_token_is_progress(folder: Path) -> None:
    """So that `progress_timeout` does not take a long text for a hang."""
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "temperature: 0"))
    (plan,) = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None).plans
    (job,) = [step for step in plan.steps if isinstance(step, RunJob)]
    opened = OpenedSession(candidate=PlannedSession(name="m", providers=()), session=_Slow())
    assert RowRunner(job, opened, Hooks(stop=lambda: False, prove=lambda _: None)).progressed == 7.5


def test_the_folder_that_ran_well_is_kept_for_the_time_when_it_is_gone(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "notes").mkdir()
    (folder / "notes/a.csv").write_text("id,prompt\n0,the pump leaks\n")
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "chat: prompt").replace("notes.csv", "notes/*.csv"))
    assert cli("apply", "m.yaml", "--last-good").code == 0
    shutil.rmtree(folder / "models")
    (folder / "notes/b.csv").write_text("id,prompt\n1,valve is hot\n")
    result = cli("apply", "m.yaml", "--last-good")
    assert [row["text"] for row in results(folder)] == [
        '{"part": "pump", "fault": "leak"}',
        '{"part": "valve", "fault": "heat"}',
    ], result.err


def matrices() -> tuple[np.ndarray, np.ndarray]:
    """Return the two matrices of the example's adapter, as its graph has them."""
    path = REPOSITORY / "deployments/adapters/polite.onnx_adapter"
    found = onnxruntime.AdapterFormat.read_adapter(str(path)).get_parameters()
    first, second = (np.array(found[f"follows.lora_{letter}.weight"].numpy()) for letter in "AB")
    return first, second


def test_an_adapter_that_was_converted_writes_as_its_weights_merged_into_the_model(cli: Cli, folder: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    first, second = matrices()
    trained = {"base_model.model.follows.lora_A.weight": first.T, "base_model.model.follows.lora_B.weight": second.T}
    (folder / "trained").mkdir()
    safetensors.save_file(
        {name: np.ascontiguousarray(one) for name, one in trained.items()}, folder / "trained/adapter_model.safetensors"
    )
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "fan_in_fan_out": False, "bias": "none"}
    (folder / "trained/adapter_config.json").write_text(json.dumps(config))
    model = folder / "models/writer/model.onnx"
    done = cli("adapter", "convert", folder / "trained", "--model", model, "-o", folder / "polite.onnx_adapter")
    assert done.code == 0, done.err
    rows = [{"prompt": "the pump leaks"}, {"prompt": "all is well"}]
    declared = "adapters: {polite: {path: polite.onnx_adapter, model: write.decoder}}\n"
    assert apply(cli, folder, rows, "temperature: 0", f"    adapter: polite\n{declared}").code == 0
    adapted = [row["text"] for row in results(folder)]

    merged = onnx.load(model)
    (follows,) = [one for one in merged.graph.initializer if one.name == "follows"]
    follows.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(follows) + first @ second, "follows"))
    onnx.save(merged, model)
    assert apply(cli, folder, rows).code == 0
    assert [row["text"] for row in results(folder)] == adapted
    assert all(text.endswith(" Please look at it soon.") for text in adapted)


def test_an_adapter_for_another_model_is_refused_before_the_run(cli: Cli, folder: Path) -> None:
    make_adapter(folder / "other.onnx_adapter", other=np.zeros((2, 2), np.float32))
    declared = "adapters: {other: {path: other.onnx_adapter, model: write.decoder}}\n"
    refused = apply(cli, folder, [{"prompt": "the pump"}], "temperature: 0", f"    adapter: other\n{declared}")
    assert refused.code == 1
    assert "adapter-mismatch" in refused.out + refused.err


def test_a_text_fits_its_json_schema(cli: Cli, folder: Path) -> None:
    """The model alone would say that the part is unknown."""
    schema = "{type: object, properties: {part: {enum: [belt]}, fault: {type: string}}, required: [part, fault], additionalProperties: false}"
    result = apply(cli, folder, [{"prompt": "it leaks"}], f"json_schema: {schema}")
    assert result.code == 0, result.err
    (row,) = results(folder)
    assert json.loads(row["text"])["part"] == "belt"


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ("seed: 0", "the pump\0 leaks"),
        ("chat: prompt", "the pump\0 leaks"),
        ("chat: messages", '[{"role": "user", "content": "the pump\\u0000 leaks"}]'),
    ],
)
def test_a_prompt_of_which_the_library_would_read_the_beginning_alone_fails(
    cli: Cli, folder: Path, said: str, prompt: str
) -> None:
    (folder / "notes.jsonl").write_text(json.dumps({"id": 0, "messages" if "messages" in said else "prompt": prompt}))
    (folder / "m.yaml").write_text(MANIFEST.replace("notes.csv", "notes.jsonl").replace("SAID", said))
    assert cli("apply", folder / "m.yaml").code == 1
    place = 9 if said == "seed: 0" else 9 + len("<|user|>")
    assert f"character {place} of what the model reads is NUL" in letters(folder)[0]["message"]


@pytest.mark.parametrize(
    ("said", "is_memory"),
    [
        ("Could not allocate the key-value cache buffer of shape: [1]", True),
        ("Failed to allocate memory for requested buffer of size 9", True),
        ("the shapes of pre-allocated outputs do not match", False),
        ("no such file: memory.bin", False),
    ],
)
def test_only_what_says_so_is_a_want_of_memory(said: str, *, is_memory: bool) -> None:
    assert says_no_memory(RuntimeError(said)) == is_memory


def test_a_model_that_cannot_share_its_buffers_does_not_seem_to_want_memory(cli: Cli, folder: Path) -> None:
    path = folder / "models/writer/genai_config.json"
    path.write_text(path.read_text().replace('"past_present_share_buffer": false', '"past_present_share_buffer": true'))
    assert apply(cli, folder, [{"prompt": "it leaks"}]).code == 1
    (letter,) = letters(folder)
    assert letter["code"] == "run-refused"
    assert "pre-allocated" in letter["message"]


def test_a_json_schema_is_looked_at_without_a_cache_of_the_whole_context(cli: Cli, folder: Path) -> None:
    """The cache of a context of so many tokens is larger than any memory."""
    path = folder / "models/writer/genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["context_length"] = config["search"]["max_length"] = 2**31 - 1
    config["search"]["past_present_share_buffer"] = True
    path.write_text(json.dumps(config))
    schema = "json_schema: {type: object, properties: {part: {enum: [belt]}}, required: [part]}, max_new_tokens: 40"
    assert apply(cli, folder, [{"prompt": ""}], schema).code == 1
    assert "the prompt has no token" in letters(folder)[0]["message"]


def config_with(folder: Path, **said: Any) -> None:
    """Change keys of the model in genai_config.json; None takes one out."""
    path = folder / "models/writer/genai_config.json"
    config = json.loads(path.read_text())
    model = {**config["model"], **said}
    config["model"] = {key: value for key, value in model.items() if value is not None}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"eos_token_id": -5}, "eos_token_id (-5) must be in range"),
        ({"eos_token_id": 10**12}, "genai_config.json"),
        ({"vocab_size": None}, "vocab_size must be 1 or greater"),
        ({"type": "nonsense"}, "Unsupported model_type"),
        ({"type": "gpt2"}, "input was not found"),
        ({"type": "decoder-pipeline"}, "input was not found"),
    ],
)
def test_a_config_that_the_library_refuses_is_told_by_the_plan(
    cli: Cli, folder: Path, said: dict[str, Any], why: str
) -> None:
    config_with(folder, **said)
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 9"))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "refused-model" in result.out
    assert why in result.words


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer.json", None),
        ("tokenizer_config.json", None),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer_config.json", '{"tokenizer_class": "Nonsense"}'),
    ],
)
def test_a_tokenizer_that_the_library_cannot_read_is_told_by_the_plan(
    cli: Cli, folder: Path, file: str, text: str | None
) -> None:
    path = folder / "models/writer" / file
    path.unlink() if text is None else path.write_text(text)
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 9"))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "ONNX Runtime GenAI does not open models/writer to write so" in result.words


def test_a_version_that_was_kept_is_opened_and_not_what_lies_in_its_place(cli: Cli, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 9").replace("notes.csv", "in/*.csv"))
    write_rows(folder, [{"prompt": "the pump leaks oil"}])
    (folder / "notes.csv").rename(folder / "in/a.csv")
    assert cli("apply", folder / "m.yaml", "--last-good").code == 0
    shutil.rmtree(folder / ".ortdeploy/memo")  # which knows that the folder was opened
    (folder / "models/writer/tokenizer_config.json").write_text("[1]")
    shutil.copy(folder / "in/a.csv", folder / "in/b.csv")
    refused = cli("apply", folder / "m.yaml", "--last-good")
    assert (refused.code, len(results(folder))) == (1, 2), refused.out


@pytest.mark.parametrize("ends", [None, []])
def test_a_config_that_does_not_say_which_token_ends_a_text_is_told_by_the_plan(
    cli: Cli, folder: Path, ends: list[int] | None
) -> None:
    """GenAI takes the token that fills rows up for it, so texts would go on until their room is full."""
    config_with(folder, eos_token_id=ends)
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 9"))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "unusable-preset" in result.out
    assert "has no model.eos_token_id" in result.words


def test_each_of_several_tokens_may_end_a_text(cli: Cli, folder: Path) -> None:
    ends = json.loads((folder / "models/writer/tokenizer.json").read_text())["model"]["vocab"]['",Ġ"fault":Ġ"']
    config_with(folder, eos_token_id=[1, ends])
    assert apply(cli, folder, [{"prompt": "the pump leaks"}]).code == 0
    (row,) = results(folder)
    assert (row["text"], row["finish_reason"]) == ('{"part": "pump', "end")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_where_a_column_of_settings_is_empty_the_manifest_holds(cli: Cli, folder: Path, kind: str) -> None:
    names = ("max_new_tokens", "temperature", "top_k", "repetition_penalty", "num_beams", "seed", "stop")
    rows = [dict[str, Any].fromkeys(names) for _ in range(2)]
    rows[1] |= {"max_new_tokens": 1, "stop": "[]"}
    table = pa.table({"id": [0, 1], "prompt": ["the pump leaks"] * 2, **arrays_of(rows)})
    if kind == "parquet":
        pq.write_table(table, folder / "notes.parquet")
    elif kind == "csv":
        pa_csv.write_csv(table, folder / "notes.csv")
    else:
        lines = [{name: value for name, value in row.items() if name != "top_k"} for row in table.to_pylist()]
        lines[1] |= {"top_k": 1, "temperature": 0.0}  # the first has no such key
        (folder / "notes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    said = "max_new_tokens: 3, stop: [fault]"
    text = MANIFEST.replace("SAID", said).replace("notes.csv", f"notes.{kind}")
    (folder / "m.yaml").write_text(text)
    result = cli("apply", folder / "m.yaml")
    assert result.code == 0, result.err
    assert [(row["text"], row["finish_reason"]) for row in results(folder)] == [
        ('{"part": "pump", "', "stop"),
        ('{"part": "', "length"),
    ]


def arrays_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return columns of search options, with nulls where rows have none."""
    types = {
        "max_new_tokens": pa.int64(), "top_k": pa.int64(), "num_beams": pa.int64(), "seed": pa.int64(), "stop": pa.string()
    }  # fmt: skip
    return {name: pa.array([row[name] for row in rows], types.get(name, pa.float64())) for name in rows[0]}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("do_sample: true", 'Did you mean "temperature"?'),
        ("max_length: 5", 'Did you mean "max_new_tokens"?'),
        ("stop_strings: [a]", 'Did you mean "stop"?'),
        ("system_prompt: a", 'Did you mean "system"?'),
    ],
)
def test_a_key_of_another_library_leads_to_that_of_a_manifest(cli: Cli, folder: Path, said: str, why: str) -> None:
    result = apply(cli, folder, [{"prompt": "the pump"}], said)
    assert result.code == 1
    assert why in result.words


def test_a_file_in_place_of_its_folder_leads_to_the_folder(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(
        MANIFEST.replace("SAID", "seed: 1").replace("models/writer,", "models/writer/model.onnx,")
    )
    assert "Name the folder around it: models/writer." in cli("plan", folder / "m.yaml").words


def split_by(folder: Path, pattern: str) -> None:
    """Have the tokenizer divide texts by a pattern first."""
    path = folder / "models/writer/tokenizer.json"
    said = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters = {**said["pre_tokenizer"], "use_regex": False}
    path.write_text(json.dumps({**said, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, letters]}}))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that ends a process")
def test_a_row_over_which_the_tokenizer_comes_to_no_end_fails_alone(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_tokenizer, "_LEAST", 0.5)
    split_by(folder, "(xx+y*)+z")
    rows = [{"prompt": text} for text in ("the pump leaks", "the pump " + "x" * 80, "valve is hot")]
    result = apply(cli, folder, rows, more="    errors: {max_failed: 1}\n")
    assert result.code == 0, result.err
    assert [row["id"] for row in results(folder)] == ["0", "2"]
    (failed,) = letters(folder)
    assert (failed["row"], failed["code"]) == (1, "crashed")
    assert "the tokenizer came to no end over a text" in failed["message"]


@pytest.mark.opens_models
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that ends a process")
def test_a_tokenizer_that_comes_to_no_end_is_told_by_the_plan(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_tokenizer, "_LEAST", 0.5)
    split_by(folder, r"(\w+)+:")
    result = apply(cli, folder, [{"prompt": "the pump"}])
    assert result.code == 1
    assert "refused-model" in result.out
    assert "its tokenizer comes to no end over a short text" in result.words


def test_a_json_schema_that_is_none_is_told_by_the_plan(cli: Cli, folder: Path) -> None:
    result = apply(cli, folder, [{"prompt": "it leaks"}], "json_schema: {type: nonsense}")
    assert result.code == 1
    assert "refused-model" in result.out
    assert "nonsense" in result.words
    assert not results(folder)


@pytest.mark.opens_models
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds what a process allocates")
def test_a_json_schema_that_takes_more_memory_than_there_should_be_is_told_by_the_plan(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_opening, "_MOST_BYTES", 2 * 2**20)
    monkeypatch.setattr(trial_opening, "_THREADS_A_CORE", 0)
    write_rows(folder, [{"prompt": "it leaks"}])
    schema = f"json_schema: {{enum: [{'a' * 100_000}]}}"  # some 5 MiB
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", schema))
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "it takes more than 0.00195312 GiB of memory beside the weights" in result.words


def split(folder: Path) -> None:
    """Make two models of the example's decoder, as builders for NPUs do: its embedding, and the rest."""
    models = folder / "models/writer"
    model = onnx.shape_inference.infer_shapes(onnx.load(models / "model.onnx"))
    extractor, kept = onnx.utils.Extractor(model), [f"past_key_values.0.{one}" for one in ("key", "value")]
    outputs = [one.name for one in model.graph.output]
    onnx.save(extractor.extract_model(["input_ids"], ["x"]), models / "embed.onnx")
    onnx.save(extractor.extract_model(["x", "input_ids", "attention_mask", *kept], outputs), models / "rest.onnx")
    (models / "model.onnx").unlink()
    config = json.loads((models / "genai_config.json").read_text())
    config["model"]["type"] = "decoder-pipeline"
    del config["model"]["decoder"]["filename"]
    config["model"]["decoder"]["pipeline"] = [
        {
            "embed": {"filename": "embed.onnx", "inputs": ["input_ids"], "outputs": ["x"]},
            "rest": {
                "filename": "rest.onnx",
                "inputs": ["x", "input_ids", "attention_mask", *kept],
                "outputs": outputs,
                "session_options": {"provider_options": [{"qnn": {"backend_type": "htp"}}], "intra_op_num_threads": 2},
            },
        }
    ]
    (models / "genai_config.json").write_text(json.dumps(config))


def test_a_decoder_in_several_parts_writes_as_a_whole_one(cli: Cli, folder: Path) -> None:
    split(folder)
    rows = [{"prompt": "the pump leaks oil"}, {"prompt": "valve is hot"}]
    parts = "components: {embed: {file: embed.onnx}, rest: {file: rest.onnx, session: {inter_op_num_threads: 1}}}"
    result = apply(cli, folder, rows, parts)
    assert result.code == 0, result.err
    assert [row["text"] for row in results(folder)] == [
        '{"part": "pump", "fault": "leak"}',
        '{"part": "valve", "fault": "heat"}',
    ]
    words = result.words
    assert "session write.embed: embed.onnx" in words
    assert "inter_op_num_threads=1" in words
    assert "contradictory-genai-config" in words
    assert "Of the rest, it names the provider qnn, and the manifest CPUExecutionProvider, which runs." in words


def test_a_decoder_in_several_parts_is_named_whole(cli: Cli, folder: Path) -> None:
    split(folder)
    refused = apply(cli, folder, [{"prompt": "the pump"}], "components: {embed: {file: embed.onnx}}")
    assert refused.code == 1
    assert "components: {embed: {file: embed.onnx}, rest: {file: rest.onnx}}" in refused.words


def test_try_shows_prompts_with_their_texts(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump leaks"}, {"prompt": ""}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 9"))
    said = cli("try", folder / "m.yaml").out
    assert """row 0: the pump leaks\n    -> {"part": "pump", "fault": "leak"} (5 tokens, end)\n""" in said
    assert "row 1 failed: the prompt has no token" in said


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("max_new_tokens: 9", "a context of 128 tokens, at most 9 new ones, the best token each"),
        (
            "temperature: 0.5, seed: 2147483647",
            "a context of 128 tokens, draws with temperature 0.5, top_p 1, top_k 50, seed 2147483647",
        ),
        (
            "num_beams: 3, repetition_penalty: 1.5",
            "a context of 128 tokens, the best of 3 beams, repetition_penalty 1.5",
        ),
    ],
)
def test_the_plan_says_how_texts_are_written(cli: Cli, folder: Path, said: str, line: str) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", said))
    assert f"writes {line}\n" in cli("plan", folder / "m.yaml").out


def test_a_config_that_changes_after_the_plan_is_refused(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 4"))
    assert cli("plan", folder / "m.yaml", "--out", folder / "plan.json").code == 0
    config = folder / "models/writer/genai_config.json"
    config.write_text(config.read_text().replace('"context_length": 128', '"context_length": 64'))
    refused = cli("apply", folder / "plan.json")
    assert refused.code != 0
    assert "moved-fact" in refused.words


def test_shards_of_a_saved_plan_write_what_one_process_does(cli: Cli, folder: Path) -> None:
    rows = [{"prompt": f"the {part} leaks"} for part in ("pump", "valve", "belt", "motor")]
    assert apply(cli, folder, rows).code == 0
    whole = results(folder)
    manifest = (folder / "m.yaml").read_text().replace("path: outbox,", "path: shards, rows_per_part: 1,")
    (folder / "m.yaml").write_text(manifest)
    assert cli("plan", folder / "m.yaml", "--out", folder / "plan.json").code == 0
    for shard in ("0/2", "1/2"):
        result = cli("apply", folder / "plan.json", "--shard", shard)
        assert result.code == 0, result.err
    assert cli("finish", folder / "plan.json").code == 0
    assert results(folder, "shards") == whole
    assert json.loads((folder / "shards/_run.json").read_text())["written"]["end"] == 4


def test_lock_pins_all_files_of_the_folder(cli: Cli, folder: Path) -> None:
    write_rows(folder, [{"prompt": "the pump"}])
    (folder / "m.yaml").write_text(MANIFEST.replace("SAID", "max_new_tokens: 4"))
    assert cli("lock", folder / "m.yaml").code == 0
    assert cli("plan", folder / "m.yaml").code == 0
    tokenizer = folder / "models/writer/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    result = cli("plan", folder / "m.yaml")
    assert result.code == 1
    assert "digest-mismatch" in result.out + result.err


def measure(folder: Path, batch: int, limit: int) -> tuple[list[int], str]:
    """Return the bytes that were measured, and what was said of them."""
    said = "components: {decoder: {row_independence: false}}"
    text = MANIFEST.replace("SAID", said) + f"    batch: {{size: {batch}}}\n    limits: {{memory: {limit}}}\n"
    (folder / "m.yaml").write_text(text)
    result = run_process(["plan", "m.yaml", "--measure"], cwd=folder)
    events = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
    return [one["bytes"] for one in events if one["event"] == "job.measured"], result.words


@pytest.mark.slow
def test_a_batch_without_room_for_its_keys_and_values_is_refused_with_one_that_fits(folder: Path) -> None:
    """The prompts nearly fill the context; the scores of its tokens alone take a row 175 KB."""
    write_rows(folder, [{"prompt": "pump " * 120} for _ in range(400)])
    (alone,), _ = measure(folder, 1, 2**30)
    limit = alone + 24 * 2**20
    _, refused = measure(folder, 2000, limit)
    (fitting,) = re.findall(r"batch: {size: (\d+)} fits", refused)
    assert 1 < int(fitting) < 2000
    taken, said = measure(folder, int(fitting), limit)
    assert "over-memory-limit" not in said
    assert max(taken) <= limit
    assert run_process(["apply", "m.yaml"], cwd=folder).code == 0
    assert len(results(folder)) == 400


@pytest.mark.slow
def test_kills_lose_and_double_no_row(folder: Path) -> None:
    """kill -9 at moments that are drawn; the end is what an undisturbed run leaves."""
    parts, faults = ("pump", "valve", "filter", "motor", "belt"), ("leaks", "is hot", "is loud", "is blocked")
    rows = [{"prompt": f"{parts[row % 5]} {row} {faults[row % 4]}"} for row in range(600)]
    write_rows(folder, rows)
    text = MANIFEST.replace("SAID", "temperature: 0").replace("format: csv}", "format: csv, rows_per_part: 10}")
    (folder / "m.yaml").write_text(text)
    moments, kills = random.Random(7), 0  # noqa: S311  moments, not secrets
    while kills < effort(12, 300):
        process = forks.start_program(
            ["apply", "m.yaml"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
        )
        commits = moments.randint(0, 4)
        for line in process.stderr:
            commits -= "part.committed" in line
            if commits < 0:
                break
        alive = process.poll() is None
        process.kill()
        process.wait()
        process.stderr.close()
        if not alive:
            shutil.rmtree(folder / "outbox")
            shutil.rmtree(folder / ".ortdeploy", ignore_errors=True)
        kills += alive
    assert run_fork(["apply", "m.yaml"], cwd=folder).code == 0
    found = results(folder)
    assert [int(row["id"]) for row in found] == list(range(600))
    names = {"leaks": "leak", "is hot": "heat", "is loud": "noise", "is blocked": "blockage"}
    for row, one in enumerate(found):
        assert json.loads(one["text"]) == {"part": parts[row % 5], "fault": names[faults[row % 4]]}
