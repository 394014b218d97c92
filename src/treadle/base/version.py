"""The version, in one place: package metadata and file manifests read it here."""

VERSION = "0.2.0"
LITE: tuple[str, ...] | None = None
"""The backends of `treadle-lite`, whose build rewrites the line above; None in all of Treadle."""
