"""What is trained: shapes, the reference decoder, the traced program and its table."""
