"""Published models: functions in the `hubconf.py` of git repositories and directories."""

from treadle.hub.entries import help, import_module, list, load
from treadle.hub.exceptions import (
    FetcherError,
    GitCheckoutError,
    GitPullError,
    HubError,
    InvalidGitHost,
    InvalidProtocol,
    InvalidRepo,
    UntrustedRepo,
)
from treadle.hub.tools import cd, check_module_exists, load_module
from treadle.hub.weights import load_serialized_obj_from_url, name_with_digest, pretrained

__all__ = [
    "FetcherError",
    "GitCheckoutError",
    "GitPullError",
    "HubError",
    "InvalidGitHost",
    "InvalidProtocol",
    "InvalidRepo",
    "UntrustedRepo",
    "cd",
    "check_module_exists",
    "help",
    "import_module",
    "list",
    "load",
    "load_module",
    "load_serialized_obj_from_url",
    "name_with_digest",
    "pretrained",
]
