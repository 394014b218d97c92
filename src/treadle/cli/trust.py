"""`treadle trust`: whose machine code in model files runs here, besides one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.base.env import config_directory
from treadle.base.files.trust import new_pair, public_key, set_trusted_keys, short, trusted_keys
from treadle.cli.console import show_facts
from treadle.cli.status import Misuse

Keys = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="KEY",
        help="Files with public keys: Ed25519, as OpenSSL (PEM) or OpenSSH writes them.",
    ),
]
Name = Annotated[str, typer.Option(help="Of the key, in lists; that of its file where left out.")]
New = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Make a pair: a private key FILE, and FILE.pub to give out."),
]
Remove = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Do not trust a key any more; may be repeated."),
]


def command(keys: Keys = None, name: Name = "", new: New = None, remove: Remove = None) -> None:
    """Trust a key: code of model files that it has signed runs here, with your rights.

    Without arguments, shows the keys that are trusted. Code that you compiled yourself on this
    machine needs no key. Files of others run as well: their graphs are compiled here.
    """
    if name and len(keys or ()) != 1:
        raise Misuse("--name", "it is for one key")
    if new is not None:
        key = new_pair(new)
        show_facts({"private key": new, "public key": f"{new}.pub", "is": short(key)})
    known = before = trusted_keys()
    for unwanted in remove or ():
        kept = {k: n for k, n in known.items() if unwanted not in (n, k, short(k))}
        if len(kept) == len(known):
            raise Misuse("--remove", f"no key that is trusted is called {unwanted}")
        known = kept
    for path in keys or ():
        known = {**known, public_key(path): " ".join((name or path.stem).split())}
    if known != before:
        set_trusted_keys(known)
    if new is None:
        where = config_directory()
        show_facts({short(k): n for k, n in known.items()} or {"trusted": f"no keys in {where}"})


__all__ = ["command"]
