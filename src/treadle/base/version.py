"""The version, in one place: package metadata and file manifests read it here."""

VERSION = "0.1.0"
