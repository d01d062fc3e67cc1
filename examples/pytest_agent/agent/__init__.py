"""A support agent of a small shop: it looks up orders, and refunds them."""
