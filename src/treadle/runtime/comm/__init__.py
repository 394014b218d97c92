"""Messages between processes: one protocol, and the engines behind it."""
