"""Chat templates: they render as in transformers, and a stranger's ends."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from support.effort import effort

from ortdeploy.presets import bounded_templates
from ortdeploy.presets.chat_templates import ChatTemplate, TemplateError, read_chat_template

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Who? <b>'é'"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, None]}}}],
    },
    {"role": "tool", "content": [{"type": "text", "text": "x\ny"}], "name": "f"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def by_jinja(template: str, messages: Any = MESSAGES) -> str:
    """Return what transformers makes of messages."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["strftime_now"] = datetime.now().strftime  # noqa: DTZ005  as transformers has it
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return environment.from_string(template).render(
        messages=messages, tools=None, documents=None, add_generation_prompt=True, **TOKENS
    )


DOUBLED = (
    "{% set ns = namespace(x=['ab'], y=['ab']) %}{% for _ in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
TUPLES = "{% set ns = namespace(x='a') %}{% for _ in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
OVER_A_TEXT = "{% set u = 'x' * 100000 %}{% for c in u %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set r = range(100000) %}{% for i in r %}{% for j in r if false %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}" + "x" * 50_000 + "{% endfor %}",
        "{% for m in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        "{{ [1] * 1000000000 }}",
        "{{ 'x' * 1000 * 1000 * 1000 }}",
        "{% set a0 = 'ab' %}" + "".join(f"{{% set a{n + 1} = a{n} ~ a{n} %}}" for n in range(40)) + "{{ a40 }}",
        "{% set a0 = 'ab' %}" + "".join(f"{{% set a{n + 1} = a{n} + a{n} %}}" for n in range(40)) + "{{ a40 }}",
        DOUBLED + "{{ ns.x }}",
        DOUBLED + "{{ ns.x|tojson }}",
        DOUBLED + "{{ ns.x|string|length }}",
        DOUBLED + "{{ ns.x == ns.y }}",
        DOUBLED + "{{ ns.x ~ 'a' }}",
        DOUBLED + "{{ ns }}",
        DOUBLED + "{{ [ns.x]|join }}",
        DOUBLED + "{{ [ns.x]|select('equalto', ns.y)|list }}",
        DOUBLED + "{{ [ns.x, ns.y]|sort }}",
        DOUBLED + "{{ [1] is in [ns.x, ns.y] }}",
        DOUBLED + "{{ [ns.x].index(ns.y) }}",
        DOUBLED + "{{ raise_exception(ns.x) }}",
        DOUBLED + "{{ ''.join(ns.x) }}",
        DOUBLED + "{% for i in [1, 2] %}{{ loop.changed(ns.x if i == 1 else ns.y) }}{% endfor %}",
        TUPLES + "{{ {ns.x: 1} }}",
        TUPLES + "{{ {}.get(ns.x) }}",
        TUPLES + "{% set d = {} %}{{ d[ns.x] }}",
        "{% set ns = namespace(x=1) %}{% for _ in range(300) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
        "{% for _ in range(100000) %}{% set x = [" + "{}, " * 2000 + "] %}{% endfor %}",
        "{% for _ in range(100000) %}" + "{% if x %}{% endif %}" * 500 + "{% endfor %}",
        "{% macro f() %}{{ varargs }}{% endmacro %}{% set x = range(100000) %}{% for _ in x %}{% set y = f(*x) %}{% endfor %}",
        "{% set x = 2 ** 3000000 %}{% for _ in range(100000) %}{% set y = -x %}{% endfor %}",
        "{% set x = 'a' * 30000 %}{{ x.rfind('b' ~ 'a' * 15000) }}",
        "{% set x = 'a' * 30000 %}{{ x|trim('b' * 15000 ~ 'a') }}",
        "{% autoescape true %}{{ '<b>'|safe ~ '<' }}{% endautoescape %}",
        " \n",
        "{% set ns = namespace(x=7) %}{% for _ in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x > 1 }}",
        "{{ 7 ** 10000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'|indent(1000000000, true) }}",
        "{{ [1]|tojson(indent=1000000000) }}",
        "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
        "{{ ('x' * 100000)|replace('', 'y' * 100000) }}",
        "{{ ('y' * 100000).join('x' * 100000) }}",
        "{{ ('x' * 100000)|join('y' * 100000) }}",
        "{{ ''.join([('x' * 100000)] * 100000) }}",
        "{% filter upper %}{{ 'x' * 10000000 }}{% endfilter %}",
        OVER_A_TEXT + "{% set v = u|upper %}{% endfor %}",
        OVER_A_TEXT + "{% set v = u[1:] %}{% endfor %}",
        OVER_A_TEXT + "{% set v = u.upper() %}{% endfor %}",
        OVER_A_TEXT + "{% set v = u.find('y') %}{% endfor %}",
        OVER_A_TEXT + "{% if u == u %}{% endif %}{% endfor %}",
        OVER_A_TEXT + "{% if 'y' in u %}{% endif %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as p %}",
        "{{ [].append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[0].content.encode() }}",
        "{{ [1, 2]|random }}",
        "{# " * 20_000,
        "{% if x %}" * 3000,
        "{{ " + "(" * 20_000,
        "{{ 'x }}",
        "x" * 100_000,
    ],
)
def test_a_template_that_may_run_for_ever_or_reach_out_is_refused(tmp_path: Path, template: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(TemplateError, match="template"):
        read_chat_template(tmp_path)


def test_a_template_that_loops_over_each_text_fails_the_row() -> None:
    template = ChatTemplate(
        "{% for c in messages[0].content %}{% for d in messages[0].content %}x" + "{% endfor %}" * 2, {}
    )
    assert template.render([{"role": "user", "content": "ab"}]) == "xxxx"
    with pytest.raises(TemplateError, match="loops for too long"):
        template.render([{"role": "user", "content": "ab" * 5_000}])


def test_a_long_conversation_is_looked_through_from_each_message() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for i in range(loop.index0, messages|length) %}{{ messages|length - i }},{% break %}"
        "{% endfor %}{% endfor %}",
        {},
    )
    assert template.render([{"role": "user", "content": "Hi"}] * 3000).endswith(",3,2,1,")


def test_each_message_may_look_through_all_before_it() -> None:
    """As the template of Gemma 4 does, for what was said before a tool has answered."""
    template = ChatTemplate(
        "{% for m in messages %}{% for j in range(loop.index0) %}{% if messages[j].role == 'tool' %}{% endif %}"
        "{% endfor %}{{ m.content }}{% endfor %}",
        {},
    )
    assert template.render([{"role": "user", "content": "Hi"}] * 300) == "Hi" * 300


def test_turns_of_a_loop_are_counted_beside_the_size_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn takes as long as thousands of letters that are copied."""
    turns: list[str] = []
    monkeypatch.setattr(bounded_templates, "_LEAST", 100)
    monkeypatch.setattr(bounded_templates, "_now", turns.append)
    inner = "{% for _ in messages[0].content %}" * 2 + "{% set x = strftime_now('') %}" + "{% endfor %}" * 2
    with pytest.raises(TemplateError, match="loops for too long"):
        ChatTemplate(inner, {}).render([{"role": "user", "content": "a" * 5_000}])
    assert 1_000 < len(turns) < 5_000


def test_a_rendering_that_takes_too_long_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rendering: list[ChatTemplate] = []
    monkeypatch.setattr(bounded_templates, "_now", lambda _: rendering[0].end(early=True))
    template = ChatTemplate("{% if messages|length > 1 %}{{ strftime_now('') }}{% endif %}{{ messages[0].role }}", {})
    rendering.append(template)
    with pytest.raises(TemplateError, match="it was ended"):
        template.render(MESSAGES)
    template.end(early=False)
    assert template.render(MESSAGES[:1]) == "system"


def test_a_loop_that_is_not_entered_costs_little() -> None:
    inner = "{% for x in m.tools %}" + "much text " * 100 + "{% endfor %}"
    template = ChatTemplate("{% for m in messages %}" + inner + "{{ m.content }}{% endfor %}", {})
    assert template.render([{"role": "user", "content": "Hi"}] * 1000) == "Hi" * 1000


@pytest.mark.parametrize(
    "template",
    [  # what the templates of Llama 3.1, Qwen 3, Mistral, Gemma, DeepSeek, Qwen 3 Coder and gpt-oss do
        "{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{{ system_message }}"
        "{%- for message in messages %}{%- for tool_call in message.tool_calls %}{{- message['content'] }}"
        "{%- for name, value in tool_call.function.arguments | items %}{{- name ~ value }}" + "{%- endfor %}" * 3,
        "{%- set ns = namespace(many=true, last=messages|length - 1) %}{%- for message in messages[::-1] %}"
        "{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.many and message.role == 'user' and message.content "
        "is string and not (message.content.startswith('<t>') and message.content.endswith('</t>')) %}"
        "{%- set ns.many = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}{{ ns.last }}"
        "{%- for message in messages if message.content is string %}{%- set content = message.content %}"
        "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{{- content }}{%- endfor %}",
        "{%- for message in messages %}{%- for call in message.tool_calls -%}{%- set fn = call.function if call.function "
        "is defined else call -%}{{- fn.arguments | tojson -}}{{ call|tojson(indent=4) }}{%- endfor -%}{%- endfor -%}",
        "{%- macro render_keys(given, handled) %}{%- if given is mapping %}{%- for key in given %}{%- if key not in "
        "handled %}{{ '<' ~ key ~ '>' ~ (given[key] | string) ~ '</' ~ key ~ '>' }}{%- endif %}{%- endfor %}{%- endif %}"
        "{%- endmacro %}{% for m in messages %}{{ render_keys(m, ['role']) }}{% endfor %}",
        "{%- macro kind(spec, n=0) -%}{%- if spec is mapping and n < 3 -%}{{ spec.keys()|list|join(', ') }}"
        "{{ kind(spec.values()|first, n + 1) }}{%- elif spec is iterable and spec is not string -%}[]{%- endif -%}"
        "{%- endmacro -%}{{ kind(messages[2].tool_calls[0]) }}",
        "{% for i in range(messages|length) %}\n    {% if loop.first or messages[i - 1].role != messages[i].role %}\n"
        "{{ i }}: {{ messages[i]['role'] | upper }}\n    {% endif %}\n    {# nothing #}\n{% endfor %}\n",
        "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'assistant') != (loop.index0 % 2 == 1) %}"
        "{% continue %}{% endif %}{{ m.role + eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
        "{{ messages | selectattr('role', 'equalto', 'tool') | list | length }}{{ messages|map(attribute='role')|join('+') }}"
        "{% set x %}a{{ messages[0].content|trim }}{% endset %}{{ x }}{% set tools = tools or [] %}{{ tools }}",
        "{{ 'tool' in messages|map(attribute='role') }}{{ 'x' in messages|map(attribute='role') }}{{ strftime_now('%Z%z') }}",
        "{% for m in messages recursive %}{{ m.role or m.text }}{{ loop(m.content) if m.content is not string }}{% endfor %}",
        "{% for m in messages %}{{ m.nothing }}{{ m.nothing is defined }}{% else %}none{% endfor %}{{ '%s' }}",
    ],
)
def test_a_template_as_models_have_it_renders_as_in_transformers(template: str) -> None:
    assert ChatTemplate(template, TOKENS).render(MESSAGES) == by_jinja(template)


def test_what_the_model_writes_is_a_part_like_others() -> None:
    template = "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}"
    assert ChatTemplate(template, {}).render(MESSAGES) == "systemuserassistanttool"


def test_a_template_may_ask_for_the_day() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render(MESSAGES)) == len("2026-11-28")


def test_a_template_refuses_messages_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="does not take the messages: Roles must alternate"):
        template.render(MESSAGES)


EXPRESSIONS = st.sampled_from(
    ["m.role", "m['content']", "loop.index0", "m", "m.none", "'a'", "7", "messages[1:3]", "m.tool_calls", "[m.role, 2]"]
)
OPERATIONS = st.sampled_from(
    ["{} ~ {}", "({}, {})", "{} == {}", "{} if {}", "{} or {}", "{}|string ~ {}|length", "[{}, {}]|tojson",
     "{}|default('d') ~ ({} is string)", "({}|string).replace('e', 'E') ~ {}", "({}|string)[1:] ~ {}",
     "[{}]|list + [{}]|list", "({}|string)|trim|upper ~ {}|list|length", "{} is defined and {} is mapping"]
)  # fmt: skip


def pieces(depth: int = 3) -> st.SearchStrategy[str]:
    """Return templates of white space, values, comments and statements, with every sign that they may have."""
    signs = st.sampled_from(["", "-", "+"])
    values = st.builds(str.format, OPERATIONS, EXPRESSIONS, EXPRESSIONS)
    plain = st.one_of(
        st.sampled_from([" ", "\n", "\t", "a", "  \n  ", "\r\n"]),
        st.builds("{{{{{} {} {}}}}}".format, st.just(""), values, st.just("")),
    )
    comments = st.builds("{{#{}c{}#}}".format, signs, signs)
    if not depth:
        return st.one_of(plain, comments)
    inner = st.lists(pieces(depth - 1), max_size=3).map("".join)
    choice = st.builds("{{%{} if {} {}%}}{}{{%{} endif {}%}}".format, signs, values, signs, inner, signs, signs)
    loops = st.builds("{{%{} for m in messages {}%}}{}{{%{} endfor {}%}}".format, signs, signs, inner, signs, signs)
    return st.one_of(plain, comments, choice, loops)


@settings(max_examples=effort(60, 2000))
@given(st.lists(pieces(), max_size=5).map("".join))
def test_a_template_renders_as_in_transformers_or_neither_does(template: str) -> None:
    try:
        expected = by_jinja(template)
    except Exception:  # noqa: BLE001  as a template may raise
        with pytest.raises(TemplateError):
            ChatTemplate(template, TOKENS).render(MESSAGES)
    else:
        assert ChatTemplate(template, TOKENS).render(MESSAGES) == expected


def test_a_template_takes_the_tokens_of_its_tokenizer(tmp_path: Path) -> None:
    config = {
        "chat_template": [
            {"name": "tool", "template": "t"},
            {"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},
        ]
    }
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    assert read_chat_template(tmp_path).render(MESSAGES) == "<s></s>"


def test_the_template_of_an_example_is_read() -> None:
    read = read_chat_template(REPOSITORY / "deployments/models/writer")
    assert read.render([{"role": "user", "content": "the pump"}]) == "<|user|>the pump<|assistant|>"
