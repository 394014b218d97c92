"""Templates of conversations: those of models, and those of strangers."""

import time

import pytest
from tests.llm.text.test_tokenizer import bytes_tables

from treadle.base.errors import CheckpointError
from treadle.llm.text import Template, Tokenizer

TOKENIZER = Tokenizer.of(bytes_tables())
HELLO = [{"role": "user", "content": "hi"}]


def rendered(source, messages=HELLO, **options):
    return Template(source, TOKENIZER).render(messages, **options)


def test_what_templates_write():
    source = """{{ bos_token }}{% for m in messages %}
    <{{ m['role'] }}>{{ m.content | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""
    found = rendered(source, [{"role": "system", "content": " x "}, *HELLO])
    assert found == "<|begin|>    <system>x<|end|>\n    <user>hi<|end|>\n<assistant>"
    assert "<assistant>" not in rendered(source, add_generation_prompt=False)


def test_what_templates_use():
    assert rendered("{{ tools | tojson }}", tools=[{"a": "<é>"}]) == '[{"a": "<é>"}]'
    assert rendered("{{ tools is defined }}") == "False"
    assert rendered("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert rendered("{% generation %}a{{ messages[0].content }}{% endgeneration %}") == "ahi"
    assert (
        rendered("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "012"
    )
    assert rendered("{% set ns = namespace(x=0) %}{% set ns.x = 3 %}{{ ns.x }}") == "3"
    assert rendered("{{ 'a\nb' | indent(2) }}") == "a\n  b"
    assert rendered("{{ 'a' ~ 1 ~ none ~ [2, 'b'] }}") == "a1None[2, 'b']"
    assert rendered("{{ messages | map(attribute='role') | join('+') }}") == "user"
    assert rendered("{{ ', '.join(['a', 'b']) ~ 'aa'.replace('a', 'c', 1) }}") == "a, bca"
    assert rendered("{{ '{} of {:.1f}'.format(1, 2) ~ '%s' % 3 }}") == "1 of 2.03"
    assert rendered("{{ {'a': [1]} | tojson(indent=1) }}") == '{\n "a": [\n  1\n ]\n}'
    assert rendered("{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}") == "a1"
    assert rendered("{% set t %}" + "x" * 99 + "{% endset %}{{ t | length }}") == "99"
    assert rendered("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_templates_that_ask_for_none():
    for source in (
        "{% if messages[0]['content'] is none %}calls{% endif %}",
        "{% if m.content is not None and m.content != '' %}{% endif %}",
        "{% if (m.get('content')) != none %}{% endif %}",
    ):
        assert Template(source, TOKENIZER).asks_for_none
    others = (
        "{{ m.content }}",
        "{% if m.content %}none{% endif %}",
        "{% if tools is none %}{% endif %}",
    )
    for source in others:
        assert not Template(source, TOKENIZER).asks_for_none


def test_templates_may_refuse():
    with pytest.raises(CheckpointError, match="refuses this: roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}")


def test_messages_stay_as_they_are():
    messages = [{"role": "user", "content": "hi", "extra": [1]}]
    with pytest.raises(CheckpointError):
        rendered("{{ messages[0].extra.append(2) }}", messages)
    assert messages[0]["extra"] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ self.__init__.__globals__.__builtins__.open('/etc/passwd').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ 'a' * 10000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ range(1000000000) | list }}",
        "{% for i in range(9999999999) %}{% endfor %}",
        "{% set x = namespace(t='aaaaaaaaaa') %}{% for i in range(90) %}"
        "{% set x.t = x.t + x.t %}{% endfor %}{{ x.t }}",
        "{% set x = namespace(t='aaaaaaaaaa') %}{% for i in range(90) %}"
        "{% set x.t = x.t ~ x.t %}{{ x.t }}{% endfor %}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=900000) }}",
        "{{ '%*d' % (900000000, 1) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
        "{{ (['a' * 1000000] * 1000) | join }}",
        "{{ ''.join(['a' * 1000000] * 1000) }}",
        "{{ ['a' * 1000000] | map('replace', 'a', 'b' * 1000) | list }}",
        "{{ 'ab'.translate({97: 'a' * 1000000}) }}",
        "{{ ([[1] * 1000000] * 1000) | sum(start=[]) }}",
        "{% set x = namespace(n=3) %}{% for i in range(90) %}{% set x.n = x.n * x.n %}{% endfor %}",
        "{% set x = namespace(t='a' * 1000000) %}{% for i in range(90) %}"
        "{% set x.t = x.t ~ x.t %}{% endfor %}",
        "{% set x = namespace(l=[]) %}{% for i in range(60) %}"
        "{% set x.l = [x.l, x.l] %}{% endfor %}{{ x.l | tojson }}",
        "{% set x = namespace(l=()) %}{% for i in range(60) %}"
        "{% set x.l = (x.l, x.l) %}{% endfor %}{{ x.l }}",
        "{% set x = namespace(l={}) %}{% for i in range(60) %}"
        "{% set x.l = dict(a=x.l, b=x.l) %}{% endfor %}{{ x.l == x.l }}",
        "{% set x = namespace(l=[]) %}{% for i in range(99999) %}"
        "{% set x.l = x.l + ['a' * 900000 ~ i] %}{% endfor %}",
        "{% set t %}{% for i in range(99999) %}{{ 'a' * 900000 }}{% endfor %}{% endset %}{{ t }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{# " + "x" * (1 << 20) + " #}",
        "{% for",
        "{{ nothing.there }}",
        "{{ 1 / 0 }}",
    ],
)
def test_hostile_templates(source):
    """An error or nothing, promptly, and never a byte of the machine."""
    begun = time.monotonic()
    try:
        found = rendered(source)
    except CheckpointError:
        found = ""
    assert not found
    assert time.monotonic() - begun < 30


def test_templates_that_never_end(monkeypatch):
    monkeypatch.setattr("treadle.llm.text.template.MOST_SECONDS", 0.2)
    inner = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match="seconds"):
        rendered(inner)
    assert time.monotonic() - begun < 30
