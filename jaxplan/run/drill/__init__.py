"""The recovery drill: real faults in child processes, and whether training comes back as if nothing had been."""
