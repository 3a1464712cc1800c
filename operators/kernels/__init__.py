"""The loop nests of the operators, with their schedules: ordinary kernels, to be read and copied."""
