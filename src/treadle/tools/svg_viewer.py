"""`svg_viewer`: serve the pictures of a directory to a browser on this machine."""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
from collections.abc import Sequence


def server(address: str, port: int, folder: str) -> http.server.ThreadingHTTPServer:
    """A server of the files in a directory; port 0 takes one that is free."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    return http.server.ThreadingHTTPServer((address, port), handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command until it is interrupted; its exit status."""
    parser = argparse.ArgumentParser("svg_viewer", description=__doc__)
    parser.add_argument("-p", "--port", type=int, default=8000)
    parser.add_argument("-a", "--address", default="127.0.0.1", help="127.0.0.1: this machine only")
    parser.add_argument("folder", nargs="?", default=".")
    args = parser.parse_args(arguments)
    with server(args.address, args.port, args.folder) as made:
        print(f"http://{args.address}:{made.server_port}/ serves {args.folder}; Ctrl-C ends it")
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
