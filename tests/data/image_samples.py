"""Small image files of kinds that OpenCV reads but does not write, and how to make bombs.

Made with Pillow: 8 pixels wide, 16 high, (200, 40, 40) in red, green, blue.
"""

import base64
import struct
import zlib

# fmt: off
_CMYK = (
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwAoHB4jHhkoIyEjLSsoMDxkQTw3Nzx7WF1JZJGAmZaPgIyKoLTmw6Cq2q2KjMj/"
    "y9ru9f///5vB////+v/m/f/4/8AAFAgAEAAIBEMRAE0RAFkRAEsRAP/EAB8AAAEFAQEBAQEBAAAAAAAAAAABAgMEBQYH"
    "CAkKC//EALUQAAIBAwMCBAMFBQQEAAABfQECAwAEEQUSITFBBhNRYQcicRQygZGhCCNCscEVUtHwJDNicoIJChYXGBka"
    "JSYnKCkqNDU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6g4SFhoeIiYqSk5SVlpeYmZqio6Slpqeo"
    "qaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2drh4uPk5ebn6Onq8fLz9PX29/j5+v/aAA4EQwBNAFkASwAAPwC9WbWb"
    "WzRRRRX/2Q=="
)
_WEBP = (
    "UklGRoYAAABXRUJQVlA4WAoAAAACAAAABwAADwAAQU5JTQYAAAAAAAAAAABBTk1GKgAAAAAAAAAAAAcAAA8AAAAAAAJWUDhM"
    "EQAAAC8HwAMAB1CUIhel/4GI6H8AAEFOTUYoAAAAAAAAAAAABwAADwAAAAAAAFZQOEwPAAAALwfAAwAHUOSI/gciov8BAA=="
)
_GIF = (
    "R0lGODdhCAAQAIEAAMwAAJkzM8wzMwAAACwAAAAACAAQAAAILwAFCBw4EIAAgwYJKjwoECHBAAIhMkyYcGHDixUFSCw40SJB"
    "igEybsR40SPDjgEBACH5BAEAAAIALAAAAAAIABAAgQCZAADMAAAAAAAAAAgdAAMIHEiwoMGDBwEgXIhQIUGHDCMuhCjRIMUA"
    "AQEAOw=="
)
_TURNED = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAATU0AKgAAAAgAAQESAAMAAAABAAYAAAAAAAD/2wBDACgcHiMeGSgjISMt"
    "KygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl"
    "+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAARCAAQAAgDASIAAhEBAxEB"
    "/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJx"
    "FDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqD"
    "hIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6"
    "/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdhcRMi"
    "MoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6"
    "goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4uPk5ebn6Onq8vP09fb3+Pn6"
    "/9oADAMBAAIRAxEAPwCvRRRWR3n/2Q=="
)
_PALETTE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAQAQMAAAARRKw+AAAAA1BMVEXIKChQLvxyAAAAC0lEQVR4nGNgwA8AACAAATRbo2EA"
    "AAAASUVORK5CYII="
)
# fmt: on

CMYK_JPEG = base64.b64decode(_CMYK)
ANIMATED_WEBP = base64.b64decode(_WEBP)
"""The second frame is green."""
ANIMATED_GIF = base64.b64decode(_GIF)
"""The second frame is green."""
TURNED_JPEG = base64.b64decode(_TURNED)
"""To be turned by 90 degrees, says its EXIF data."""
PALETTE_PNG = base64.b64decode(_PALETTE)


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that claims a size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    parts = (chunk(b"IHDR", size), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
