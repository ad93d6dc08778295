"""What a profile says: traces of all platforms read into one form, and compared with what was predicted."""
