"""What breaks: kills, damaged files, full disks, hostile files. `python -m benchmarks.faults`."""
