"""Pipeline schedules, one a file: the closed forms of its source beside the order in which its devices work."""
