"""Products of activations with weights in quantized blocks."""
