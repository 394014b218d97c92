"""Weights by address: downloaded once, compared with the hash in their name."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from hashlib import sha256 as sha256_of
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from treadle.base import env
from treadle.base.files.download import Digest, fetch
from treadle.hub.exceptions import HubError
from treadle.serialization import load

_TIMEOUT_SECONDS = 60.0


def load_serialized_obj_from_url(
    url: str, model_dir: str | os.PathLike[str] | None = None, *, sha256: str | None = None
) -> Any:
    """Download a file that `treadle.load` reads, such as a `.safetensors` or `.pkl`, and load it.

    The file is kept, and not downloaded again. It is compared with `sha256` or, without one, with
    the first digits of its hash if its name ends in them (`resnet18-f37072fd.safetensors`, as
    PyTorch names its weights). Loading runs no code from the file, not from pickles either: see
    `treadle.load`.

    Args:
        url: an https, http or file address.
        model_dir: where to keep the file; `serialized` below `MGE_HOME` if None.
        sha256: the file's hash, or its first digits, at least 8.

    Raises:
        DownloadError: the file cannot be fetched, or is another one.
        CheckpointError: it is damaged or of another kind.
        HubError: the address names no file, or `sha256` is malformed.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(urlsplit(url).path))
    if not name.strip("._"):
        raise HubError("hub.load_serialized_obj_from_url", "the address names no file", saw=url)
    if sha256 is not None and not re.fullmatch(r"[0-9A-Fa-f]{8,64}", sha256):
        raise HubError("hub.load_serialized_obj_from_url", "sha256 is malformed", saw=repr(sha256))
    folder = env.home_directory() / "serialized" if model_dir is None else Path(model_dir)
    # Files of different addresses may have the same name.
    path = folder.expanduser() / f"{sha256_of(url.encode()).hexdigest()[:6]}_{name}"
    digest = Digest.in_name(name) if sha256 is None else Digest("sha256", sha256)
    return load(fetch(url, path, digest, _TIMEOUT_SECONDS))


class pretrained:
    """Gives a function that makes a model the argument `pretrained`.

    Called with `pretrained=True`, the function's model gets the weights at `url`:

        @hub.pretrained("https://example.com/resnet18-f37072fd.safetensors")
        def resnet18(**kwargs):
            return ResNet(BasicBlock, [2, 2, 2, 2], **kwargs)

    Args:
        url: of weights, see `load_serialized_obj_from_url`.
        sha256: their hash, if their name does not end in it.
    """

    def __init__(self, url: str, *, sha256: str | None = None) -> None:
        self.url = url
        self.sha256 = sha256

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function."""

        @functools.wraps(func)
        def make(pretrained: bool = False, **kwargs: Any) -> Any:
            model = func(**kwargs)
            if pretrained:
                model.load_state_dict(load_serialized_obj_from_url(self.url, sha256=self.sha256))
            return model

        return make


def name_with_digest(path: str | os.PathLike[str]) -> Path:
    """Rename a file so that its name ends in the first digits of its hash; returns the new path.

    Raises:
        OSError: the file cannot be read or renamed.
    """
    old = Path(path)
    found = Digest("sha256", "").of(old)[:8]
    if old.stem.endswith(f"-{found}"):
        return old
    return old.rename(old.with_name(f"{old.stem}-{found}{old.suffix}"))
