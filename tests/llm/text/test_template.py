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
    assert rendered("{{ enable_thinking }}", enable_thinking=False) == "False"


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
    assert time.monotonic() - begun < 5


def test_templates_that_never_end(monkeypatch):
    monkeypatch.setattr("treadle.llm.text.template.MOST_SECONDS", 0.2)
    inner = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match="seconds"):
        rendered(inner)
    assert time.monotonic() - begun < 5
