"""Chat templates against transformers' rendering of the same ones, and the limits that keep them harmless."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from models.chat_templates import CHATML, LLAMA3, MISTRAL, QWEN3, TEMPLATES
from outpace.errors import RequestError
from outpace.models.text.chat_limits import MAX_CHARACTERS, MAX_PRODUCT, MAX_STEPS, Budget
from outpace.models.text.chat_template import MAX_OUTPUT_CHARACTERS, MAX_TEMPLATE_CHARACTERS, ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

USER, ASSISTANT = (
    {"role": "user", "content": " Hi, 12 × 3? <|im_end|> "},
    {"role": "assistant", "content": "It is 36. 😀\n"},
)
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [USER, ASSISTANT, USER],
    [{"role": "system", "content": "Be brief."}, USER, ASSISTANT, USER, ASSISTANT],
    [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}],
    [USER, {"role": "assistant", "content": "x", "tool_calls": None}, {"role": "user", "content": ""}],
]


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(
    name: str, messages: list[dict[str, Any]], prompt: bool, oracle: PreTrainedTokenizerFast
) -> None:
    expected = oracle.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=prompt
    )
    assert render(TEMPLATES[name], messages, add_generation_prompt=prompt) == expected


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(st.text(max_size=20), min_size=1, max_size=6),
    name=st.sampled_from(sorted(TEMPLATES)),
)
def test_any_contents_are_rendered_as_by_transformers(
    contents: list[str], name: str, oracle: PreTrainedTokenizerFast
) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    expected = oracle.apply_chat_template(messages, chat_template=TEMPLATES[name], tokenize=False)
    assert render(TEMPLATES[name], messages, add_generation_prompt=False) == expected


def test_nested_content_is_rendered_as_by_transformers(oracle: PreTrainedTokenizerFast) -> None:
    call = {"function": {"name": "f", "arguments": {"x": [1, "é"]}}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "x", "tool_calls": [call]},
        {"role": "tool", "content": {"answer": (1, 2)}},
    ]
    expected = oracle.apply_chat_template(messages, chat_template=LLAMA3, tokenize=False)
    assert render(LLAMA3, messages, add_generation_prompt=False) == expected


def render(source: str, messages: Any = (USER,), **options: Any) -> str:
    return ChatTemplate(source, SPECIAL).render(messages, **options)


def test_the_date_is_todays() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_the_templates_own_words_reach_the_user() -> None:
    with pytest.raises(RequestError, match="do not fit the model's chat template: After the optional system message"):
        render(MISTRAL, [ASSISTANT])
    with pytest.raises(RequestError, match="Only user and assistant roles are supported, not tool"):
        render(MISTRAL, [USER, {"role": "tool", "content": "x"}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("hi", "must be a list"),
        ({"role": "user"}, "must be a list"),
        ([USER, "hi"], r"messages\[1\] must be an object"),
        ([{"content": "x"}], r"messages\[0\] must be an object with a text role"),
        ([{"role": 1, "content": "x"}], "text role"),
        ([{"role": "user", "content": object()}], "a message holds a object"),
        ([{"role": "user"}], "do not fit"),
    ],
)
def test_messages_that_are_none_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(CHATML, messages)


def test_nesting_is_bounded() -> None:
    content: Any = "x"
    for _ in range(100):
        content = [content]
    with pytest.raises(RequestError, match="nested more than"):
        render(CHATML, [{"role": "user", "content": content}])


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{{ " + "(" * 5000, "{% unknown %}", "{{ x|unknown }}"])
def test_broken_templates_are_refused_as_the_requests_fault(source: str) -> None:
    with pytest.raises(RequestError, match="chat template is broken"):
        render(source)


def test_templates_that_are_too_long_are_refused() -> None:
    with pytest.raises(RequestError, match=f"at most {MAX_TEMPLATE_CHARACTERS}"):
        render("x" * (MAX_TEMPLATE_CHARACTERS + 1))


STEPS, CHARACTERS, PRODUCT = (
    f"more than {MAX_STEPS} steps",
    f"more than ({MAX_CHARACTERS}|{MAX_PRODUCT}) characters",
    f"more than {MAX_PRODUCT} characters at once",
)
NESTED = "{% for a in range(100000) %}{% for b in range(100000) %}BODY{% endfor %}{% endfor %}"
DOUBLED = "{% set ns = namespace(x=START) %}{% for a in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
TWINS = "{% set x = ['a' * 1000000] * 9 %}{% set y = ['a' * 1000000] * 9 %}{% for i in range(1000) %}BODY{% endfor %}"
KEYS = (
    "{% set ns = namespace(key=()) %}{% for i in range(14) %}{% set ns.key = (ns.key, ns.key) %}{% endfor %}"
    "{% for i in range(1000) %}{% set x = {}[ns.key] %}{% endfor %}"
)
FILTERED = "{% set r = [0] * 100000 %}{% for a in r %}{% for b in r if TEST %}{% endfor %}{% endfor %}"
CALLS = "{% for a in range(100000) %}{% set b = self.x() %}{% endfor %}"
BIG = "{% set big = 'a' * 1000000 %}{% for i in range(100000) %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (NESTED.replace("BODY", ""), STEPS),
        (NESTED.replace("BODY", "{{ 'abcdefgh' * 1000 }}"), f"exceeds {MAX_OUTPUT_CHARACTERS}"),
        ("{% set x %}" + NESTED.replace("BODY", "a" * 5000) + "{% endset %}", CHARACTERS),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}", STEPS),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        (DOUBLED.replace("START", "'a'").replace("STEP", "ns.x ~ ns.x"), CHARACTERS),
        (DOUBLED.replace("START", "'a'").replace("STEP", "ns.x + ns.x"), CHARACTERS),
        (DOUBLED.replace("START", "'a'").replace("STEP", "ns.x.replace('a', 'aa')"), CHARACTERS),
        (DOUBLED.replace("START", "'a'").replace("STEP", "[ns.x, ns.x]|join"), CHARACTERS),
        (DOUBLED.replace("START", "'a'").replace("STEP", "'%s%s' % (ns.x, ns.x)"), CHARACTERS),
        (DOUBLED.replace("START", "'a'").replace("STEP", "'{0}{0}'.format(ns.x)"), CHARACTERS),
        (DOUBLED.replace("START", "[]").replace("STEP", "[ns.x, ns.x]"), STEPS),
        (DOUBLED.replace("START", "[]").replace("STEP", "dict(a=ns.x, b=ns.x)"), STEPS),
        (DOUBLED.replace("START", "[]").replace("STEP", "{'a': ns.x, 'b': ns.x}"), STEPS),
        (DOUBLED.replace("START", "[]").replace("STEP", "dict.fromkeys(['a', 'b'], ns.x)"), STEPS),
        (DOUBLED.replace("START", "[]").replace("STEP", "namespace(a=ns.x, b=ns.x)"), STEPS),
        (DOUBLED.replace("START", "[1]").replace("STEP", "ns.x + ns.x"), CHARACTERS),
        (DOUBLED.replace("START", "9").replace("STEP", "ns.x * ns.x"), "64 bits"),
        (BIG.replace("BODY", "{% if 'b' in big %}{% endif %}"), CHARACTERS),
        (BIG.replace("BODY", "{% if big|upper %}{% endif %}"), CHARACTERS),
        (BIG.replace("BODY", "{% if big[1:] %}{% endif %}"), CHARACTERS),
        (BIG.replace("BODY", "{% if big.split('b') %}{% endif %}"), CHARACTERS),
        ("{{ 'a' * 10**12 }}", CHARACTERS),
        ("{{ [1] * 10**12 }}", CHARACTERS),
        ("{{ 10**12 * 'a' }}", CHARACTERS),
        ("{{ 2 ** (10 ** 9) }}", "power"),
        ("{{ (2 ** 60) ** 60 }}", "64 bits"),
        ("{{ 'a'|center(10**9) }}", "number above"),
        ("{{ 'a'.ljust(10**9) }}", "number above"),
        ("{{ 'a'.zfill(width=10**9) }}", "number above|takes no keyword"),
        ("{{ ('a' * 100000).replace('a', 'b' * 100000) }}", CHARACTERS),
        ("{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", CHARACTERS),
        ("{{ (['a'] * 100000)|join('b' * 100000) }}", CHARACTERS),
        ("{{ '%999999999d' % 3 }}", PRODUCT),
        ("{{ '%999999999d'|format(3) }}", PRODUCT),
        ("{{ '%*d' % (999999999, 3) }}", "width"),
        ("{{ '{:999999999d}'.format(3) }}", PRODUCT),
        ("{{ ('{0:>999}' * 1000000).format(3) }}", PRODUCT),
        ("{{ '{:{}}'.format(3, 99999) }}", "width"),
        ("{{ ('a' * 100000).translate({97: 'b' * 100000}) }}", PRODUCT),
        ("{{ ('a' * 100000).translate(['b' * 100000] * 98) }}", CHARACTERS),
        ("{{ (['a'] * 100000)|map('string')|join('b' * 100000) }}", PRODUCT),
        ("{{ ('b' * 100000).join(['a'] * 100000) }}", PRODUCT),
        ("{{ ('b' * 100000).join((['a'] * 100000)|map('string')) }}", PRODUCT),
        (BIG.replace("BODY", "{% set x = big.find('ab') %}"), CHARACTERS),
        (BIG.replace("BODY", "{% set x = big.isalpha() %}"), CHARACTERS),
        (BIG.replace("BODY", "{% set x = 'b'.join([big]) %}"), CHARACTERS),
        (BIG.replace("BODY", "{% set x = 5|round(1000000, 'ceil') %}"), CHARACTERS),
        (BIG.replace("BODY", "{% if big is lower %}{% endif %}"), CHARACTERS),
        (BIG.replace("BODY", "{% if 'b' is in big %}{% endif %}"), CHARACTERS),
        (BIG.replace("BODY", "{% set x = [big]|select('lower')|first %}"), CHARACTERS),
        ("{{ ('a' * 2000000).strip('b' * 1000000 ~ 'a') }}", CHARACTERS),
        ("{{ ('a' * 2000000)|trim('b' * 1000000 ~ 'a') }}", CHARACTERS),
        ("{{ ('a' * 2000000).rfind('b' ~ 'a' * 1000000) }}", CHARACTERS),
        ("{{ ('a' * 2000000).rsplit('b' ~ 'a' * 1000000) }}", CHARACTERS),
        (TWINS.replace("BODY", "{% if x == y %}{% endif %}"), CHARACTERS),
        (TWINS.replace("BODY", "{% if x[0] in y %}{% endif %}"), CHARACTERS),
        (TWINS.replace("BODY", "{% set z = dict(a=x, b=y).values()|sort %}"), CHARACTERS),
        (TWINS.replace("BODY", "{% set z = x.count(y[0]) %}"), CHARACTERS),
        (KEYS, STEPS),
        ("{% for i in range(1000) %}{% set x = range(100000)|sum %}{% endfor %}", CHARACTERS),
        ("{% for i in range(1000) %}{% if 0.5 in range(100000) %}{% endif %}{% endfor %}", CHARACTERS),
        ("{{ ([[0]] * 400000)|sum(start=[]) }}", "only numbers are summed"),
        ("{{ '%s' % (messages,) }}", "neither a text nor a number"),
        ("{{ messages|tojson(indent=100000) }}", "more than 16"),
        ("{{ 'a'.encode() * 10**12 }}", "bytes"),
        ("{{ (1).to_bytes(8, 'big') }}", "bytes"),
        ("{{ strftime_now('%999Y' * 1000000) }}", "form of more than"),
        (FILTERED.replace("TEST", "b"), f"{STEPS}|{CHARACTERS}"),
        ("{% for a in range(100000) %}" + "{% set b = a %}" * 9000 + "{% endfor %}", CHARACTERS),
        ("{% block x %}" + "{% set b = 1 %}" * 9000 + "{% endblock %}" + CALLS, CHARACTERS),
        ("{% macro f() %}" + "{% set b = 1 %}" * 9000 + "{% endmacro %}" + CALLS.replace("self.x", "f"), CHARACTERS),
        ("{{ range(10**9) }}", "number above"),
        ("{{ range(100001) }}", "(?i)range too big"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(role='x') }}", "unsafe"),
        ("{{ namespace(__init__=1) }}", "underscore"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% import 'x' as y %}", "no loader"),
        ("{{ lipsum() }}", "lipsum"),
        ("{{ messages[0].foo.bar }}", "has no attribute 'foo'"),
        ("{{ '{0.__class__.__mro__}'.format(1) }}", "unsafe"),
    ],
)
def test_hostile_templates_are_stopped(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(source)


def test_the_output_is_bounded() -> None:
    with pytest.raises(RequestError, match=f"exceeds {MAX_OUTPUT_CHARACTERS} characters"):
        render("{{ 'a' * 9000000 }}{{ 'a' * 9000000 }}")


def test_long_conversations_are_rendered() -> None:
    messages = [USER, ASSISTANT] * 1000 + [{"role": "user", "content": "x" * 1_000_000}]
    for source in (CHATML, LLAMA3, MISTRAL, QWEN3):
        assert len(render(source, messages)) > 1_000_000


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "qwen3"])
def test_long_conversations_stay_far_below_the_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[Budget] = []
    monkeypatch.setattr("outpace.models.text.chat_template.Budget", lambda: budgets.append(Budget()) or budgets[-1])
    thought = {"role": "assistant", "content": "<think>" + "x" * 400_000 + "</think>" + "y" * 100_000}
    render(TEMPLATES[name], [USER, ASSISTANT] * 1000 + [{"role": "user", "content": "x" * 500_000}, thought])
    assert budgets[0].used < 0.25


def test_a_table_of_letters_translates() -> None:
    assert render("{{ 'abc'.translate({97: 'x', 98: none}) }}") == "xc"


def test_a_year_in_a_format_is_no_width() -> None:
    assert render("{{ 'It is %s 2024, {}' % 'May' }}") == "It is May 2024, {}"


def test_a_refused_rendering_leaves_the_next_one_its_whole_budget() -> None:
    template = ChatTemplate(
        "{% for i in range(messages[0].content|int) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", {}
    )
    with pytest.raises(RequestError, match=STEPS):
        template.render([{"role": "user", "content": "5000"}])
    assert template.render([{"role": "user", "content": "900"}]) == ""


def test_threads_do_not_share_anything() -> None:
    template = ChatTemplate(CHATML, SPECIAL)
    texts: dict[int, str] = {}

    def work(number: int) -> None:
        messages = [{"role": "user", "content": str(number)}] * 50
        texts[number] = template.render(messages)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(texts[n] == template.render([{"role": "user", "content": str(n)}] * 50) for n in range(8))


@pytest.mark.parametrize("kind", ["image", "image_url", "video_url", "input_audio"])
def test_what_is_no_text_is_refused_by_name(kind: str) -> None:
    """Kimi-K2.5's template would write where an image stands."""
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: "data:,"}]
    with pytest.raises(RequestError, match=rf"messages\[0\]\.content\[1\] is of type '{kind}'.* text alone"):
        ChatTemplate("{{ messages }}", {}).render([{"role": "user", "content": parts}])
