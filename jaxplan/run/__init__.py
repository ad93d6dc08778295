"""What runs here: the doctor, and short runs on attached devices."""
