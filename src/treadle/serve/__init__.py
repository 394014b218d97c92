"""Models over HTTP and gRPC: the Open Inference Protocol, version 2, with batching and metrics.

`Application` is an ASGI application of `ServedModel`s; `serve` runs it, as `treadle serve` does.
"""

from treadle.serve.access import Access
from treadle.serve.application import Application
from treadle.serve.limits import Limits
from treadle.serve.models import ServedModel, load_compiled, load_model
from treadle.serve.server import bind, bind_grpc, is_loopback, run, serve, url_of

__all__ = [
    "Access",
    "Application",
    "Limits",
    "ServedModel",
    "bind",
    "bind_grpc",
    "is_loopback",
    "load_compiled",
    "load_model",
    "run",
    "serve",
    "url_of",
]
