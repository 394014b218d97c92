"""Channels-last convolutions and gradients in x, as products that gather nothing."""
