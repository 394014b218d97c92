"""Hooks of threads, and the count the fast path reads."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from treadle.base.modes import ACTIVE, LOCAL, Hook, install


class Quiet:
    """A hook that sees nothing."""

    def apply(self, op: Any, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        return inputs

    def binary(self, op: Any, launch: Any, kind: Any, x: Any, y: Any, /) -> Any:
        return x


@pytest.fixture(autouse=True)
def nothing_stays_installed() -> Iterator[None]:
    before = ACTIVE.count
    assert LOCAL.hook is None
    yield
    assert LOCAL.hook is None and ACTIVE.count == before


def test_installing_replaces_and_counts_threads_not_hooks() -> None:
    start = ACTIVE.count
    first: Hook = Quiet()
    second: Hook = Quiet()
    assert install(first) is None and ACTIVE.count == start + 1
    assert install(second) is first and ACTIVE.count == start + 1
    assert LOCAL.hook is second
    assert install(first) is second and install(None) is first
    assert ACTIVE.count == start
    assert install(None) is None and ACTIVE.count == start


def test_a_hook_belongs_to_its_thread() -> None:
    start = ACTIVE.count
    seen: list[tuple[Hook | None, Hook | None, int]] = []
    mine: Hook = Quiet()
    install(mine)

    def elsewhere() -> None:
        before = LOCAL.hook
        theirs: Hook = Quiet()
        replaced = install(theirs)
        seen.append((before, replaced, ACTIVE.count))
        install(None)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(None, None, start + 2)]
    assert LOCAL.hook is mine and ACTIVE.count == start + 1
    install(None)


def test_counts_survive_many_threads() -> None:
    start = ACTIVE.count
    ready = threading.Barrier(8)

    def work() -> None:
        ready.wait()
        for _ in range(2000):
            install(Quiet())
            install(None)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ACTIVE.count == start
