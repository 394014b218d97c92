"""A backend for Treadle whose device is written in C; all of it is in `ctoy.c`."""

from pathlib import Path

from treadle.backends.c_device import open_library

backend = open_library(Path(__file__).with_name("libctoy.so"))
