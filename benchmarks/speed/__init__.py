"""How fast, against whom, and how near the limit of this machine."""
