"""Logging under MegEngine's names."""

from treadle.base.log import enable_debug_log, get_logger, set_log_file, set_log_level

__all__ = ["enable_debug_log", "get_logger", "set_log_file", "set_log_level"]
