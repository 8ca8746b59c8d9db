"""The paper's theorem, tables and figures, and what we add to them: one file each."""
