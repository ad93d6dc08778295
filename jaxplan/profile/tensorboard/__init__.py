"""TensorBoard's *Plan* tab: the documents of run folders, served and drawn. The server computes nothing of them."""
