"""Row-major convolutions and their gradients, as products with gathered patches."""
