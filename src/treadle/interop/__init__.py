"""Other ecosystems: programs and files written for them."""
