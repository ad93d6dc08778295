"""What `linen_lm.py` imports from beside it."""

LAYERS, EMBED, HEADS, VOCAB = 2, 64, 4, 256
