"""Read digits in the browser, drawn with the mouse: train, compile to WebAssembly, serve a page.

Needs the extra `aot`, whose compiler links the module. The page is a folder of four files; nothing
that is drawn leaves it.

    python examples/digits_web.py [--epochs 12] [--out build/web] [--port 8000]

Then open http://127.0.0.1:8000. `--port 0` writes the folder and serves nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from digits_cnn import SEED, Net, load_data, train
from rich.console import Console

import treadle as mge
from treadle import jit
from treadle.deploy import write_wasm
from treadle.engine.package.models import read_models

SHOWN = 24


def write_page(net: Net, folder: Path) -> None:
    """Write the module, its script, the page, and held-out scans with their scores."""
    net.eval()

    @jit.trace(symbolic=True, capture_as_const=True)
    def classify(image: mge.Tensor) -> mge.Tensor:
        return net(image)

    _, _, images, labels = load_data()
    folder.mkdir(parents=True, exist_ok=True)
    classify(mge.tensor(images[:1]))
    dumped = folder / "digits.mge"
    classify.dump(dumped, arg_names=["image"], output_names=["scores"])
    (model,) = read_models(dumped)
    dumped.unlink()
    write_wasm(model, folder, "digits")
    scans = []
    for image, label in zip(images[:SHOWN], labels[:SHOWN], strict=True):
        scores = classify(mge.tensor(image[None])).numpy()[0]
        values = {"image": image.ravel(), "scores": scores}
        scans.append({"label": int(label), **{k: v.tolist() for k, v in values.items()}})
    (folder / "digits.json").write_text(json.dumps(scans), encoding="utf-8")
    shutil.copy(Path(__file__).parent / "web" / "digits.html", folder / "index.html")


class Pages(SimpleHTTPRequestHandler):
    """Serves a folder, with the types that browsers want for modules."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("build/web"))
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    console = Console()
    mge.random.seed(SEED)
    net = Net()
    train(net, options.epochs, console)
    write_page(net, options.out)
    total = sum(file.stat().st_size for file in options.out.iterdir())
    console.print(f"written: {options.out} ({total / 1024:.0f} KiB)", highlight=False)
    if options.port:
        handler = functools.partial(Pages, directory=str(options.out))
        server = ThreadingHTTPServer(("127.0.0.1", options.port), handler)
        console.print(f"open http://127.0.0.1:{options.port}; ctrl-c ends it", highlight=False)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


if __name__ == "__main__":
    main()
