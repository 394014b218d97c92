"""3x3 convolutions of channels-last maps, and their gradients, by Winograd's algorithm."""
