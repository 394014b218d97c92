"""The page of all commands names every command, with an example that begins as it is called."""

import re

from tools.tool_pages import EXAMPLES, PAGE, own, text, tools


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()


def test_every_command_is_there_once_with_its_options() -> None:
    found = tools()
    names = [tool.name for tool in found]
    assert len(set(names)) == len(names)
    assert set(names) == set(EXAMPLES)
    assert {f"treadle {name}" for name in own()} <= set(names)
    by_name = {tool.name: tool for tool in found}
    assert all(tool.text for tool in found)
    assert "--shape" in " ".join(o.spelling for o in by_name["treadle compile"].options)
    flags = by_name["python -m treadle.tools.load_and_run"].options
    assert any(o.spelling.startswith("--fast-run") for o in flags)


def test_examples_call_the_command_that_they_stand_under() -> None:
    for part in re.split(r"^## ", text(), flags=re.MULTILINE)[1:]:
        name, example = part.splitlines()[0], part.split("```sh\n")[1].split("\n```")[0]
        assert example.removeprefix("python -m ").startswith(name)
