"""Results as data, then as text. Nothing is computed here."""
