"""One small reader a platform: what its profiler writes, in the one form that `profile.trace` works on."""
