"""What loading a model leaves behind, and what it takes meanwhile."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.llm.models.test_stored import checkpoint

from treadle.base.blocks import FORMATS, BlockTensor
from treadle.llm.files.gguf_writer import planned, write_gguf
from treadle.llm.models import build
from treadle.llm.models.matrices import Quantized
from treadle.llm.models.packing import Packer

HIDDEN, INNER, VOCABULARY = 1024, 4096, 24576


def _file(path: Path, *, tied: bool) -> int:
    """Write a GGUF file of one layer, mostly embedding; return its bytes."""
    made, rng = [], np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        data = rng.integers(0, 100, (rows, FORMATS["Q8_0"].row_bytes(columns)), dtype=np.uint8)
        data.view(FORMATS["Q8_0"].layout)["d"] = np.float16(0.01)
        made.append(planned(name, BlockTensor(FORMATS["Q8_0"], (rows, columns), data)))

    matrix("token_embd.weight", VOCABULARY, HIDDEN)
    if not tied:
        matrix("output.weight", VOCABULARY, HIDDEN)
    for name in ("attn_norm", "ffn_norm"):
        made.append(planned(f"blk.0.{name}.weight", np.ones(HIDDEN, np.float32)))
    for name, rows in (("attn_q", HIDDEN), ("attn_k", 256), ("attn_v", 256)):
        matrix(f"blk.0.{name}.weight", rows, HIDDEN)
    matrix("blk.0.attn_output.weight", HIDDEN, HIDDEN)
    matrix("blk.0.ffn_gate.weight", INNER, HIDDEN)
    matrix("blk.0.ffn_up.weight", INNER, HIDDEN)
    matrix("blk.0.ffn_down.weight", HIDDEN, INNER)
    made.append(planned("output_norm.weight", np.ones(HIDDEN, np.float32)))
    keys = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": 16,
        "attention.head_count_kv": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
    }
    named = {f"llama.{key}": value for key, value in keys.items()}
    write_gguf(path, {"general.architecture": "llama"} | named, made)
    return path.stat().st_size


_MEASURE = """
import sys
from treadle.llm.files import open_checkpoint
from treadle.llm.models import build
from treadle.device import get_device_properties

def held(key):
    line = next(x for x in open("/proc/self/status") if x.startswith(key))
    return int(line.split()[1]) * 1024

get_device_properties("cpu0")
before = held("VmRSS")
given = open_checkpoint(sys.argv[1])
model = build(given, "stored")
built = held("VmHWM") - before
for i in range(0, model.vocabulary, 256):
    model.stack.embedding.given(__import__("numpy").arange(i, i + 256, dtype="int32")[None])
print(built, held("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_file_is_not_in_memory_beside_what_was_made_of_it(tmp_path: Path, tied: bool) -> None:
    """Pages of a tensor go as it is packed, and those of tokens once they were looked up."""
    size = _file(tmp_path / "model.gguf", tied=tied)
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "model.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    built, used = map(int, done.stdout.split())
    packed = size if tied else size - VOCABULARY * HIDDEN * 34 // 32
    spare = 12 << 20
    assert 0.9 * packed < built < 1.1 * packed + spare
    assert used < 1.1 * packed + spare


def test_tokens_are_looked_up_in_the_matrix_of_the_head() -> None:
    given = checkpoint("Q8_0")
    table = build(given, "stored").stack.embedding
    assert table.head is not None
    tokens = np.array([[0, 95, 16], [17, 15, 1]], np.int32)
    wanted = given.tensors["model.embed_tokens.weight"].dequantize()[tokens]
    np.testing.assert_array_equal(table.given(tokens).numpy(), wanted)


def test_tables_of_other_devices_stay_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head on a device would come to the host with every step."""
    device = SimpleNamespace(on_host=False)
    monkeypatch.setattr("treadle.llm.models.weights.default_device", lambda: device)
    given = checkpoint("Q8_0")
    table = build(given, "stored").stack.embedding
    assert table.head is None
    assert table.blocks is not None
    tokens = np.array([[3, 90]], np.int32)
    wanted = given.tensors["model.embed_tokens.weight"].dequantize()[tokens]
    np.testing.assert_array_equal(table.given(tokens).numpy(), wanted)


def test_parts_of_one_operand_are_packed_together() -> None:
    layer = build(checkpoint("Q4_0"), "stored").stack.layers[0]
    whole = layer.attention.given._whole
    assert isinstance(whole, Quantized)
    assert (whole.rows, whole.panels.shape[0]) == (128, 8)


def test_what_packing_raises_is_raised_at_its_end() -> None:
    target = np.zeros((2, 288), np.uint8)
    with pytest.raises(ValueError, match="size"), Packer() as packer:
        packer.pack("Q4_0", np.zeros((32, 17), np.uint8), target, lambda rows: None)
    seen: list[slice] = []
    with Packer() as packer:
        packer.pack("Q4_0", np.zeros((20, 18), np.uint8), target, seen.append)
    assert seen == [slice(0, 20)]
