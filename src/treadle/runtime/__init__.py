"""The ground below every engine: devices, buffers, streams, arrays and transfers."""
