"""What runs underneath every engine: devices, buffers, streams, arrays and transfers."""
