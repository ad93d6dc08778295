"""What was decided: the plan, its rules and policies, and the file that holds it."""
