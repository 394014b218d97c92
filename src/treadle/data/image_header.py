"""Headers of image files: format, size and whether the end is there.

Read before any decoder sees the file, so that a few bytes cannot ask for gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, b"\xff\xd9"


class ImageHeader(NamedTuple):
    """Facts about an image that are known before it is decoded.

    Attributes:
        kind: name of the format; "" if it is none of those read here.
        pixels: width times height; 0 if the header does not say.
        is_whole: whether the file's end is there, as far as the format marks it.
    """

    kind: str
    pixels: int = 0
    is_whole: bool = True


def read_header(data: bytes) -> ImageHeader:
    """Look at the bytes of an image file.

    Sizes are read of JPEG, PNG, GIF, BMP, WebP, PNM and TIFF. A header that ends early counts as
    an image that is not whole.
    """
    for signature, kind, parse in _FORMATS:
        if data.startswith(signature):
            try:
                return parse(kind, data)
            except (struct.error, IndexError, ValueError):
                return ImageHeader(kind, is_whole=False)
    return ImageHeader("")


def _jpeg(kind: str, data: bytes) -> ImageHeader:
    """Walk over the segments to the frame's size, then to the scan and its end."""
    position, pixels = 2, 0
    while True:
        position = data.index(b"\xff", position) + 1
        marker = data[position]
        if marker in (0x00, 0xFF) or marker in _STANDALONE:
            continue
        (length,) = struct.unpack_from(">H", data, position + 1)
        if marker in _START_OF_FRAME:
            height, width = struct.unpack_from(">HH", data, position + 4)
            pixels = height * width
        if marker == _START_OF_SCAN:
            # Inside a scan 0xFF is always followed by zero: this is the image's end, not chance.
            return ImageHeader(kind, pixels, data.find(_END_OF_IMAGE, position) >= 0)
        position += 1 + length


def _png(kind: str, data: bytes) -> ImageHeader:
    width, height = struct.unpack_from(">II", data, 16)
    return ImageHeader(kind, width * height, data.find(b"IEND", 24) >= 0)


def _gif(kind: str, data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageHeader(kind, width * height)


def _bmp(kind: str, data: bytes) -> ImageHeader:
    (header,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<hh" if header == 12 else "<ii", data, 18)
    return ImageHeader(kind, abs(width * height))


def _webp(kind: str, data: bytes) -> ImageHeader:
    if data[8:12] != b"WEBP":
        return ImageHeader("")
    (length,) = struct.unpack_from("<I", data, 4)
    chunk, body = data[12:16], data[20:]
    if chunk == b"VP8X":
        width, height = (int.from_bytes(body[at : at + 3], "little") + 1 for at in (4, 7))
    elif chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (word & 0x3FFF for word in struct.unpack_from("<HH", body, 6))
    return ImageHeader(kind, width * height, len(data) >= length + 8)


def _pnm(kind: str, data: bytes) -> ImageHeader:
    """Numbers in text, with comments from # to the end of a line."""
    numbers: list[int] = []
    for line in data[2:1024].split(b"\n"):
        numbers += [int(word) for word in line.split(b"#")[0].split()[: 2 - len(numbers)]]
        if len(numbers) == 2:
            return ImageHeader(kind, numbers[0] * numbers[1])
    raise ValueError("no size in the first 1024 bytes")


def _tiff(kind: str, data: bytes) -> ImageHeader:
    """Look for the tags ImageWidth and ImageLength in the first directory."""
    order = "<" if data[:2] == b"II" else ">"
    (directory,) = struct.unpack_from(order + "I", data, 4)
    (entries,) = struct.unpack_from(order + "H", data, directory)
    sides = {}
    for entry in range(entries):
        at = directory + 2 + 12 * entry
        tag, field = struct.unpack_from(order + "HH", data, at)
        if tag in (256, 257):
            (sides[tag],) = struct.unpack_from(order + ("H" if field == 3 else "I"), data, at + 8)
    return ImageHeader(kind, sides.get(256, 0) * sides.get(257, 0))


_FORMATS: tuple[tuple[bytes, str, Callable[[str, bytes], ImageHeader]], ...] = (
    (b"\xff\xd8\xff", "JPEG", _jpeg),
    (b"\x89PNG\r\n\x1a\n", "PNG", _png),
    (b"GIF8", "GIF", _gif),
    (b"BM", "BMP", _bmp),
    (b"RIFF", "WebP", _webp),
    *((b"P%d" % number, "PNM", _pnm) for number in range(1, 7)),
    (b"II*\x00", "TIFF", _tiff),
    (b"MM\x00*", "TIFF", _tiff),
)
