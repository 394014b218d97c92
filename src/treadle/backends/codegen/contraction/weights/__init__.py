"""Gradients in the weight of channels-last convolutions."""
