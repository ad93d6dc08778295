"""TensorBoard's *Plan* tab: the documents of run folders, served and drawn; nothing is computed from them on the server."""
