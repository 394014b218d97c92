"""Names the kind of a file that is not ours, so that the refusal can say what to do instead."""

from __future__ import annotations

_ZIP_HINT = (
    "read an .npz with numpy.load; else load the file with the program that wrote it, and store "
    "its arrays with safetensors"
)

_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive, but no .pt of PyTorch", _ZIP_HINT),
    (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "a PyTorch file of before version 1.6",
        "load it in PyTorch and torch.save it again",
    ),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"\x93NUMPY", "a NumPy .npy file", "read it with numpy.load"),
    (b"\x89HDF\r\n", "an HDF5 file (Keras .h5)", "read it with h5py and pass the arrays on"),
    (b"GGUF", "a GGUF file", ""),
    (b"\x1f\x8b", "a gzip file", "decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "decompress it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
)
_TEXT_PICKLE_OPCODES = frozenset(b"(cIFLSVNMKJGgpt]})")


def is_pickle(prefix: bytes, last: bytes) -> bool:
    """Return whether a file is a pickle by its first bytes and its last one."""
    if prefix[0] == 0x80:
        return len(prefix) > 1
    return last == b"." and prefix[0] in _TEXT_PICKLE_OPCODES


def identify(prefix: bytes) -> tuple[str, str]:
    """Identify a file by its first bytes: its kind and a hint; empty if unknown."""
    for signature, kind, hint in _SIGNATURES:
        if prefix.startswith(signature):
            return kind, hint
    return "", ""
