"""Names the kind of a file that is not ours, so that the refusal can say what to do instead."""

from __future__ import annotations

_PICKLE_HINT = (
    "pickles run code when read and are never loaded here; convert the file where you trust it: "
    "load it with the program that wrote it and store its arrays with safetensors or numpy.savez"
)

_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive (PyTorch .pt or NumPy .npz)", _PICKLE_HINT),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"\x93NUMPY", "a NumPy .npy file", "read it with numpy.load"),
    (b"\x89HDF\r\n", "an HDF5 file (Keras .h5)", "read it with h5py and pass the arrays on"),
    (b"GGUF", "a GGUF file", ""),
    (b"\x1f\x8b", "a gzip file", "decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "decompress it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
)
_TEXT_PICKLE_OPCODES = frozenset(b"(cIFLSVNMKJGgpt]})")


def identify(prefix: bytes, last: bytes) -> tuple[str, str]:
    """What a file is by its first bytes and its last one, and a hint; empty if unknown."""
    if len(prefix) >= 2 and prefix[0] == 0x80 and 2 <= prefix[1] <= 5:
        return f"a pickle file (protocol {prefix[1]})", _PICKLE_HINT
    for signature, kind, hint in _SIGNATURES:
        if prefix.startswith(signature):
            return kind, hint
    if last == b"." and prefix[0] in _TEXT_PICKLE_OPCODES:
        return "a pickle file (protocol 0 or 1)", _PICKLE_HINT
    return "", ""
